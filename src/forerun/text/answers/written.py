"""How a chat template writes tool calls, told from calls that it is given to write.

What stands between the names and values of a sample is the family's form, whatever its marks: arguments are one JSON
object, or pairs of a name and a value, each kind of value with what stands around it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from forerun.core.errors import RequestError
from forerun.text.answers.calls import CLOSE, OPEN, schemas_of
from forerun.text.answers.forms import AnswerForm
from forerun.text.answers.harmony import ARGUMENTS, CALL
from forerun.text.answers.message import AnswerMessage
from forerun.text.messages import Message, Tools

NAME, KEY, ID, NUMBER = "fq7z", "kq7z", "idq7z0001", "\0"
"""What stands for a function's name, a parameter's, a call's id of nine letters and digits, and its number."""
_NAMES, _SECOND, _TEXT, _OTHER = (NAME, "gq7z", "hq7z"), "lq7z", "vq7z", "wq7z"
_VALUES: Mapping[str, object] = {
    "string": _TEXT,
    "integer": 7351,
    "number": 73.51,
    "boolean": True,
    "null": None,
    "array": [_TEXT],
    "object": {"mq7z": _TEXT},
}
_USER = {"role": "user", "content": "Hi."}


class Template(Protocol):
    """Renders conversations, as `ChatTemplate` does."""

    @property
    def reads_tools(self) -> bool:
        """True if it has a place for tools."""
        ...

    def render(self, messages: Sequence[Message], add_generation_prompt: bool, tools: Tools) -> str:
        """Return a conversation as text."""
        ...


@dataclass(frozen=True, slots=True)
class Value:
    """What stands around the values of a type."""

    before: str
    after: str
    has_words: bool = False
    """Whether they are Python's words instead of JSON's."""

    @property
    def quote(self) -> str:
        """The quotation mark around them, within which Python's escapes hold; empty without one."""
        mark = self.after[:1]
        return mark if mark in ("'", '"') and self.before.endswith(mark) else ""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Arguments that are names and values."""

    values: Mapping[str, Value]
    """By type of JSON."""
    between: str
    first: str
    """What stands before the first name."""
    none: str | None
    """What stands there if there are no arguments; None if that is not known."""


@dataclass(frozen=True, slots=True)
class WrittenCalls:
    """The text of calls but for their arguments."""

    open: str
    """What stands before the arguments of the first call, with its NAME."""
    then: str | None
    """What stands between the arguments of two calls, with the second's name; None: there is one call."""
    end: str
    pairs: Pairs | None = None
    """None: the arguments are JSON."""


_HEAD = f'{OPEN}\n{{"name": "{NAME}", "arguments": '
HERMES_CALLS = WrittenCalls(_HEAD, f"}}\n{CLOSE}\n{_HEAD}", f"}}\n{CLOSE}")
HARMONY_CALLS = WrittenCalls(f"{CALL}{NAME}{ARGUMENTS}", None, "")


def written_calls(
    template: Template, form: AnswerForm, ends: Collection[str], control: Collection[str]
) -> WrittenCalls:
    """Return how a template writes calls, as far as this form reads them back; else Hermes' way.

    `ends` are texts that end an answer, `control` those of control tokens, which are not cut in two.
    """
    if form.is_harmony:
        return HARMONY_CALLS
    with suppress(RequestError, ValueError):
        if template.reads_tools:
            return _Sample(template, form, ends, control).found()
    return HERMES_CALLS


class _Sample:
    """What a template writes. Raises ValueError where that is no form."""

    def __init__(
        self, template: Template, form: AnswerForm, ends: Collection[str], control: Collection[str]
    ) -> None:
        self._template, self._form, self._ends, self._control = template, form, ends, control
        properties = {KEY: {"description": ""}, _SECOND: {"description": "", "type": "string"}}
        parameters = {"type": "object", "properties": properties}
        functions = [{"description": "", "name": name, "parameters": parameters} for name in _NAMES]
        self._tools = [{"type": "function", "function": function} for function in functions]
        prompt = template.render([_USER], True, self._tools)
        thought = "" if form.thinking is None else form.thinking.open
        said = {"role": "assistant", "content": _OTHER}
        whole = template.render([_USER, said], False, self._tools)
        before, _, self._behind = whole.partition(_OTHER)
        self._before = (prompt, prompt.rstrip().removesuffix(thought), before)

    def found(self) -> WrittenCalls:
        given = ({KEY: _TEXT}, {_SECOND: _OTHER}, {KEY: _TEXT})
        one, three = self._write(given[0]), self._write(*given)
        words, pairs = [json.dumps(each) for each in given], None
        if words[0] in one:
            open_, end = self._cut(one, words[0])
            thens = self._cut(three, *words)[1:3] if _NAMES[2] in three else []
        else:
            words = [word for each in given for pair in each.items() for word in pair]
            open_, _, end = self._cut(one, KEY, _TEXT)
            thens = self._cut(three, *words)[2:5:2] if _NAMES[2] in three else []
            thens = [then.replace(_SECOND, KEY) for then in thens]
            pairs, open_, after = self._pairs(open_, end, thens)
            end, *thens = (text.removeprefix(after) for text in (end, *thens))
            thens = [then.removesuffix(pairs.first) for then in thens]
        found = WrittenCalls(open_, self._then(thens) if thens else None, end, pairs)
        if NAME not in open_ or any(word in end for word in (*_NAMES, KEY)):
            raise ValueError("names stand where they are not expected")
        return found

    def _pairs(self, open_: str, end: str, thens: Sequence[str]) -> tuple[Pairs, str, str]:
        """Return how pairs are written, what stands before them, and what stands behind a text."""
        _, before, behind, *_ = self._cut(
            self._write({KEY: _TEXT, _SECOND: _OTHER}), KEY, _TEXT, _SECOND
        )
        after = self._common(behind, end, *thens)
        if not after:
            raise ValueError("texts have no end")
        between = behind.removeprefix(after)
        values = {"string": Value(before, after)}
        for kind, value in [*_VALUES.items()][1:]:
            values[kind] = self._value(kind, value, between, values)
        empty = self._write({})
        base = empty.removesuffix(end.removeprefix(after))
        if base == empty or NAME not in base:
            return Pairs(values, between, "", None), open_, after
        start = self._common(open_, base)
        return Pairs(values, between, open_[len(start) :], base[len(start) :]), start, after

    def _value(self, kind: str, value: object, between: str, known: Mapping[str, Value]) -> Value:
        """Return what stands around values of a type; where they are neither JSON nor Python, as around numbers."""
        try:
            _, text, _ = self._cut(self._write({KEY: value, _SECOND: _OTHER}), KEY, _SECOND)
            for written in (json.dumps(value), str(value)):
                before, found, after = text.rpartition(written)
                if found and after.endswith(between):
                    return Value(before, after.removesuffix(between), written != json.dumps(value))
        except ValueError:
            pass  # as Gemma's null, which is Python's there
        if "integer" not in known:
            raise ValueError("numbers are not as in JSON")
        return known["integer"]

    def _then(self, thens: Sequence[str]) -> str | None:
        """Return what stands between two calls, of the text before the second and before the third."""
        if any(name in then for name, then in zip(_NAMES, thens, strict=False)):
            return None
        first, second = (
            then.replace(name, NAME) for name, then in zip(_NAMES[1:], thens, strict=True)
        )
        signs = [
            a if a == b else NUMBER if a.isdigit() else ""
            for a, b in zip(first, second, strict=False)
        ]
        return "".join(signs) if len(first) == len(second) and all(signs) else None

    def _common(self, *texts: str) -> str:
        """Return what texts begin with, without the beginning of a control token."""
        same = takewhile(lambda signs: len({*signs}) == 1, zip(*texts, strict=False))
        start = "".join(signs[0] for signs in same)
        for mark in self._control:
            at = texts[0].find(mark, max(0, len(start) - len(mark) + 1))
            start = start[:at] if 0 <= at < len(start) < at + len(mark) else start
        return start

    def _cut(self, text: str, *words: str) -> list[str]:
        """Return what stands between words, which follow each other in a text."""
        pieces = []
        for word in words:
            piece, found, text = text.partition(word)
            if not found:
                raise ValueError(f"{word} is not written")
            pieces.append(piece)
        return [*pieces, text]

    def _write(self, *arguments: Mapping[str, object]) -> str:
        """Return the text of an answer of calls, without its end, nor a thought before."""
        calls = [
            {"id": ID, "type": "function", "function": {"name": name, "arguments": given}}
            for name, given in zip(_NAMES, arguments, strict=False)
        ]
        message = {"role": "assistant", "content": "", "tool_calls": calls}
        whole = self._template.render([_USER, message], False, self._tools)
        begun = next((one for one in self._before if whole.startswith(one)), None)
        begun = self._common(whole, self._before[-1]) if begun is None else begun
        text = whole[len(begun) :].removesuffix(self._behind)
        for end in self._ends:
            text = text.partition(end)[0]
        if (thinking := self._form.thinking) is not None:
            head, *others = text.partition(NAME)
            if thinking.close in head:
                head = head.rpartition(thinking.close)[2].lstrip("\n")
            text = "".join([head, *others])
        self._check(text, arguments)
        return text

    def _check(self, text: str, arguments: Sequence[Mapping[str, object]]) -> None:
        """Raise ValueError unless the form reads back what was written, or the first call of it."""
        parser = self._form.parser("", tools=schemas_of(self._tools))
        found = [one["function"] for one in AnswerMessage.of(text, parser).tool_calls]
        given = [*zip(_NAMES, arguments, strict=False)][: max(len(found), 1)]
        if [(one["name"], json.loads(one["arguments"])) for one in found] != given:
            raise ValueError(f"{text!r} is not read back")
