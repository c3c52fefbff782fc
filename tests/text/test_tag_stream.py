"""Calls in tags are handed on while they are written, and are what they are as a whole."""

from __future__ import annotations

import json
import time

from hypothesis import example, given
from hypothesis import strategies as st

from forerun.text.parsing.forms import form_of
from forerun.text.parsing.parts import ArgumentsPart, CallPart, ContentPart
from forerun.text.parsing.tags import M3_MARK
from tests.text.answers import QWEN, parts

CODER = form_of("<function=name>")
TOOLS = {
    "write": {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "text": {"type": "string"},
            "n": {"type": "integer"},
            "any": {},
            "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
    }
}
PIECES = (
    *("a", "b\n", "\n", " ", '"', "\\", "é😀", "</parameter>", "<parameter=n>", "<", ">"),
    *("</tool_call>", "</param", "12", "null", "<![CDATA[", "]]>", M3_MARK, "{}"),
    *("<parameter=text>\n", "\n</parameter>\n", "｜DSML｜", "atem:", "<arg_key>", "x" * 40),
)
"""No closing mark of a function: behind one anything may end the call, so a value's part is its rest or not."""


def body(values: list[tuple[str, str]]) -> str:
    inner = "\n".join(f"<parameter={key}>\n{value}\n</parameter>" for key, value in values)
    return f"<tool_call>\n<function=write>\n{inner}\n</function>\n</tool_call>"


VALUES = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
NAMES = st.sampled_from(["path", "text", "n", "any", "either", "other"])


@given(st.lists(st.tuples(NAMES, VALUES), max_size=4), st.data())
def test_a_call_is_the_same_in_all_pieces(values, data) -> None:
    text = body(values) + data.draw(st.sampled_from(["", "\n", " So.", "<tool_call>"]))
    whole = parts(QWEN, text, [], tools=TOOLS)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1), max_size=len(text))))
    for some in (cuts, [*range(1, len(text))]):
        assert parts(QWEN, text, some, tools=TOOLS) == whole


@example('""', 1)
@example('"a text as JSON"', 1)
@example('  "and blanks"', 3)
@example("<![CDATA[]]>", 1)
@given(VALUES, st.integers(1, 9))
def test_what_was_handed_on_of_a_call_that_ends_early_is_a_beginning(value, size) -> None:
    text = body([("path", "a.py"), ("text", value)])
    full = parts(QWEN, text, [], tools=TOOLS)
    parser = QWEN.parser("", tools=TOOLS)
    found = []
    for at in range(0, len(text) - 12, size):
        found += parser.read(text[at : min(at + size, len(text) - 12)], is_last=False)
    parser.read("", is_last=True, is_cut=True)
    said = "".join(part.text for part in found if isinstance(part, ArgumentsPart))
    if (
        full[0] == CallPart("write")
        and M3_MARK not in value
        and not {"｜DSML｜", "atem:"} & {value}
    ):
        assert full[1].text.startswith(said[: max(0, len(said) - 1)])


def handed_on(form, text: str) -> list[int]:
    """Where in a text each part of a call came."""
    parser, found = form.parser("", tools=TOOLS), []
    for at in range(0, len(text), 4):
        new = parser.read(text[at : at + 4], is_last=at + 4 >= len(text))
        found += [at for part in new if not isinstance(part, ContentPart)]
    return found


def test_a_long_text_comes_as_it_is_written() -> None:
    call = body([("path", "a.py"), ("text", "def f(x):\n    return x\n" * 100)])
    for form, text in ((QWEN, call), (CODER, call.removeprefix("<tool_call>\n"))):
        found = handed_on(form, text)
        assert found[0] < 80
        assert len(found) > len(text) / 5
    unknown = call.replace("write", "other")
    assert handed_on(QWEN, unknown)[0] > len(unknown) - 20


def test_a_long_call_is_read_in_linear_time() -> None:
    def took(pieces: int, piece: str) -> float:
        parser, start = QWEN.parser("", tools=TOOLS), time.process_time()
        for text in (body([("path", "a")]).partition("</function>")[0], "<parameter=text>\n"):
            parser.read(text, is_last=False)
        for _ in range(pieces):
            parser.read(piece, is_last=False)
        return time.process_time() - start

    for piece in ("some text ", "</parameter", "</parameter>\n", "<", "\n"):
        short, long = (min(took(count, piece) for _ in range(3)) for count in (2000, 8000))
        assert long < 10 * short + 0.2, (piece, short, long)


def test_arguments_of_each_type_are_those_of_the_schema() -> None:
    text = body([("n", "5"), ("text", "5"), ("either", "null"), ("any", '{"a": 1}')])
    called, arguments = parts(QWEN, text, [*range(1, len(text))], tools=TOOLS)
    assert called == CallPart("write")
    assert json.loads(arguments.text) == {"n": 5, "text": "5", "either": None, "any": {"a": 1}}
