"""What a model thinks before it says anything, and the marks around it."""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass

from forerun.text.parsing.answer_text import AnswerText
from forerun.text.parsing.call_reader import MAX_MENTIONS, CallReader, PartReader, final_parts
from forerun.text.parsing.parts import CallPart, ContentPart, Part, ReasoningPart


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """The marks around what a model thinks, which stands before all else."""

    open: str
    close: str
    has_begun: bool = False
    """Whether the prompt ends behind the opening mark."""
    sign: str = ""
    """The mark in the template that tells the family, if it is not `open`."""


def read_thought(text: AnswerText, tags: ReasoningTags, calls: CallReader) -> PartReader:
    """Yield the thought that an answer begins with, if it does, and leave out the empty lines behind it."""
    if not (tags.has_begun or (yield from _begins(text, tags))):
        return
    yield from _read_inside(text, tags.close, calls)
    while not text.held.strip() and not text.is_over:
        yield None
    text.held = text.held.lstrip()


def _begins(text: AnswerText, tags: ReasoningTags) -> Generator[None, None, bool]:
    """Tell whether an answer begins with a thought, and take the mark; one that is only closed is an empty one.

    An answer that is all there may close one that it has not opened.
    """
    if text.is_over and tags.open not in text.held.partition(tags.close)[0]:
        return tags.close in text.held
    while True:
        begun = text.held.lstrip()
        if begun.startswith(tags.open):
            text.held = begun.removeprefix(tags.open)
            return True
        if begun.startswith(tags.close):
            return True
        may_begin = tags.open.startswith(begun) or tags.close.startswith(begun)
        if text.is_over or not may_begin:
            return False
        yield None


def _read_inside(text: AnswerText, close: str, calls: CallReader) -> PartReader:
    """Yield a thought up to its end, or to calls behind which nothing comes."""
    marks = [*calls.syntaxes] if calls.tools else []
    while True:
        end = text.held.find(close)
        starts = [at for mark in marks if (at := text.held.find(mark)) >= 0]
        if starts and (end < 0 or min(starts) < end):
            length = _length_of_call(text.held, min(starts), end, calls)
            if length:  # it belongs to the thought
                yield ReasoningPart(text.take(length))
                continue
            yield ReasoningPart(text.take(len(text.held[: min(starts)].rstrip())))
        elif not text.is_over or end >= 0:
            thought, mark = text.take_until([close, *marks])
            yield ReasoningPart(thought)
            if mark:
                return
        if text.is_over:
            yield from _read_end(text, calls)
            return
        yield None


def _length_of_call(held: str, start: int, end: int, calls: CallReader) -> int:
    """Return how much belongs to the thought where a call may stand in it; 0: what it is, the answer's end tells.

    It belongs to the thought if that is closed behind it, or goes on.
    """
    if end >= 0:
        return end
    mark = next(mark for mark in calls.syntaxes if held.startswith(mark, start))
    close = calls.syntaxes[mark].close
    closed = held.find(close, start + len(mark)) if close else -1
    behind = "" if closed < 0 else held[closed + len(close) :].lstrip()
    is_call = any(one.startswith(behind) or behind.startswith(one) for one in calls.syntaxes)
    return 0 if not behind or is_call else closed + len(close)


def _read_end(text: AnswerText, calls: CallReader) -> PartReader:
    """Yield the rest of a thought that is not closed; what may be calls at its end is some."""
    held = text.take_all()
    starts = [
        found.start() for mark in calls.syntaxes for found in re.finditer(re.escape(mark), held)
    ]
    for start in sorted(starts)[-MAX_MENTIONS:]:
        if parts := _calls_of_tools(held[start:], text, calls):
            yield ReasoningPart(held[:start].rstrip())
            yield from parts
            return
    yield ReasoningPart(held.rstrip())


def _calls_of_tools(held: str, text: AnswerText, calls: CallReader) -> list[Part]:
    """Return the calls of offered tools that the rest of a thought is; none if it is anything else."""
    rest = AnswerText()
    rest.push(held, is_last=True, is_cut=text.is_cut)
    parts = final_parts(CallReader(rest, calls.syntaxes.values(), calls.tools).read())
    has_others = any(
        part.name not in calls.tools
        if isinstance(part, CallPart)
        else isinstance(part, ContentPart)
        for part in parts
    )
    return [] if has_others else parts
