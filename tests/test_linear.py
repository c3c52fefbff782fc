"""What reads the text of clients and models takes linear time: twice the text, about twice the time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from tokenizers import pre_tokenizers

from forerun.core.structured import _OLD_DRAFT
from forerun.decoding import gbnf
from forerun.decoding.calls import _SIMPLE
from forerun.server import bodies
from forerun.text.parsing import call_reader, calls, loose, tags
from forerun.text.parsing.harmony import HarmonyParser
from forerun.text.parsing.json_text import JsonText, repaired
from forerun.text.parsing.parser import MarkParser
from forerun.text.pretokenizers import _RULES

TOOLS = {"f": {"type": "object", "properties": {"x": {"type": "string"}}}}
CALLS = {
    "tags of functions": "<function=",
    "tags of functions in quotes": '<function name="f"',
    "tags of parameters": "<function=f><parameter=",
    "ends of functions": "<function=f></function>x ",
    "keys": "f<arg_key>",
    "keys with ends": "f<arg_key>x</arg_key>",
    "values": "f<arg_key>x</arg_key><arg_value>",
    "tags of MiniMax": f"{tags.M3_MARK}<a>",
    "a name and spaces": " ",
    "a colon": "call:f{a ",
    "texts that do not end": 'call:f{"\\"',
    "brackets": "{",
    "objects": "{}",
    "lists": "[",
    "closing brackets": "}",
    "fences": "```json ",
    "letters": "a",
    "backslashes": "\\",
    "quotes": '"',
    "words": "f(x=1), ",
}
"""What stands in a call many times; each begins as its first letters say."""
GRAMMARS = {
    "comments": "# ",
    "empty lines": "\n",
    "carriage returns": "\r",
    "spaces": " ",
    "letters": "a",
    "words": "a ",
    "lines": "a\n",
    "rules": "a ::=\n",
    "brackets": "(",
    "braces": '"a"{1,',
    "tokens": "<[1",
    "texts": '"a\\',
    "classes": "[a-",
    "choices": "|",
}


def seconds(read: Callable[[str], object], text: str) -> float:
    start_s = time.thread_time()
    with suppress(ValueError):  # what is wrong is told
        read(text)
    return time.thread_time() - start_s


def is_linear(read: Callable[[str], object], text: Callable[[int], str], most: int = 8_000) -> None:
    """Assert it from short texts on, so that what is not linear is found before it takes for ever."""
    size, before = 500, seconds(read, text(250))
    while size <= most:
        now = seconds(read, text(size))
        if now >= 3 * before + 0.02:  # it may have been held up
            now, before = min(now, seconds(read, text(size))), seconds(read, text(size // 2))
        assert now < 3 * before + 0.02, f"{size} letters {now:.3f} s, half of them {before:.3f} s"
        size, before = 2 * size, now


def times(part: str, end: str = "") -> Callable[[int], str]:
    return lambda size: part * (size // len(part)) + end


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    part = CALLS[name]
    for begin in ("", "f", "call:f{", "{", '"', "<function=f>", "[f("):
        text = times(part, "!")
        is_linear(lambda size: calls.read_calls(size, TOOLS), lambda size: begin + text(size))  # noqa: B023


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("begin", ["", "<tool_call>", '<tool_call>{"name": "f", "arguments": {'])
def test_answers_with_calls(name: str, begin: str) -> None:
    text = times(CALLS[name], "!")
    for new in (lambda: MarkParser(tools=TOOLS), HarmonyParser):
        is_linear(lambda text: new().read(text, is_last=True), lambda size: begin + text(size))  # noqa: B023


def test_json_of_models() -> None:
    for part in ("{", "{}", '{"a": "', "\\u", "[]"):
        is_linear(repaired, times(part), 64_000)
        is_linear(lambda text: JsonText().push(text), times(part), 64_000)


@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.parametrize("begin", ["", "root ::= ", 'root ::= "a" ', 'root ::= "a"{1,', "root"])
def test_grammars(name: str, begin: str) -> None:
    def read(text: str) -> None:
        gbnf.is_gbnf(text)
        with suppress(RecursionError):  # refused as what is wrong
            gbnf.translated(text, lambda token: None)

    for end in ("", "!", "%"):
        text = times(GRAMMARS[name], end)
        is_linear(read, lambda size: begin + text(size))  # noqa: B023


PATTERNS = {
    "gbnf": [gbnf._IS_GBNF, gbnf._SPACE, gbnf._NAME, gbnf._RULE, gbnf._REPEAT, gbnf._TOKEN],
    "calls": [
        calls.OBJECT_HEAD,
        calls.NAMED_HEAD,
        calls._BETWEEN,
        calls._COLON,
        calls._LIKE_A_CALL,
    ],
    "loose": [
        *(loose._SPACE, loose._KEY, loose._KEYWORD, loose._HEAD),
        *(loose._IN_OBJECT[0], loose._IN_LIST[0], loose._IN_CALL[0], loose._IN_LINE[0]),
    ],
    "tags": [tags._FUNCTION, tags._PARAMETER, tags._CDATA, tags._TAG, tags._PAIRS, tags._PAIR],
    "call_reader": [call_reader._BARE, call_reader._BARE_BEGUN, call_reader._BARE_END],
    "schemas": [_OLD_DRAFT, _SIMPLE],
    "bodies": [bodies._SUSPECT],
}
TEXTS = [
    *(" ", "\n", "a", "A", "1", "#", "# ", "-", ".", "a ", "a.", "<", "<a", "</", "{", "}", "} ", "(", "["),
    *('"', '"a', '\\"', "\\", ":", "a:", "::", "::=", "{1,", "<!", "<![CDATA[", "]]>", "```", "```a ", "1e"),
    *("<arg_key>", "</arg_value>", "</arg_value> ", '<|"|>', "^", "[^", '"$schema": "', '"$schema": "draft-0'),
]  # fmt: skip
BEGINS = (
    "",
    " ",
    "a",
    "1",
    '"',
    "{1,",
    "<a",
    '{ "name": "',
    "f<arg_key>",
    "call:f{",
    "```a",
    '"$schema": "',
)


@pytest.mark.parametrize("module", PATTERNS)
def test_expressions(module: str) -> None:
    for pattern in PATTERNS[module]:
        finds = [pattern.match, pattern.fullmatch]
        finds.append(pattern.search if pattern not in (tags._PAIR, *heads()) else pattern.match)
        for part in TEXTS:
            for begin in BEGINS:
                text = times(part, "!")
                for find in finds:
                    is_linear(find, lambda size: begin + text(size), 16_000)  # noqa: B023


def heads() -> list[re.Pattern[str]]:
    """Those that look at the beginning of a text alone."""
    return [gbnf._RULE, gbnf._REPEAT, gbnf._TOKEN, gbnf._NAME, gbnf._SPACE, calls.OBJECT_HEAD,
            calls.NAMED_HEAD, calls._BETWEEN, calls._COLON, calls._LIKE_A_CALL, *PATTERNS["loose"],
            tags._CDATA, tags._PAIRS, call_reader._BARE,
            call_reader._BARE_BEGUN, call_reader._BARE_END, _SIMPLE]  # fmt: skip


@pytest.mark.parametrize("rule", _RULES, ids=_RULES.values())
def test_words_of_tokenizers(rule) -> None:
    """By their own cuts alone: what `build` adds is linear."""
    cut: pre_tokenizers.PreTokenizer = rule.build()
    for part in (
        "1",
        "12½",
        " ",
        " \n",
        "\n",
        "a",
        "A",
        "aA",
        "é ",
        "中",
        "!",
        "'",
        "\u0301",
        "\t ",
    ):
        is_linear(cut.pre_tokenize_str, times(part, "x"))
