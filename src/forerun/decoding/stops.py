"""Where a sequence ends, and which of its text may be shown.

The engine hands over the emitted tokens one by one, up to the end, and gets back the text that is
final. Text that may be the beginning of a stop string is held back, so nothing shown is ever taken
back.

Of several stop strings the one that is complete first ends the text; of those complete at the same
character, the longest. So the result does not depend on how the text is split into tokens or steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from forerun.core.errors import RequestError
from forerun.core.params import SamplingParams
from forerun.core.types import FinishReason
from forerun.decoding.processors import end_ids
from forerun.decoding.stop_scope import StopScope, overlap

_FIRST_MARK = 0xD800


class Detokenizer(Protocol):
    """Turns tokens into text piece by piece."""

    def push(self, token_ids: list[int]) -> str:
        """Return the text that these tokens make final, after those pushed before."""
        ...

    def flush(self) -> str:
        """Return the rest of the text: no token will follow."""
        ...

    def hidden_in(self, text: str) -> Mapping[str, int]:
        """Return the control tokens that are written in a text, and left out of what is pushed."""
        ...


class StopChecker:
    """Follows one sequence to its end. Without a detokenizer there is no text and no stop string.

    A stop string may hold control tokens, which are no part of the text that is shown.

    An end token counts but adds no text. A stop string is not part of the text; the tokens up to
    its last character count. It is looked for in the text that comes with token `min_tokens` and
    later ones. With `include_stop_str_in_output` the text keeps both.
    """

    def __init__(
        self,
        params: SamplingParams,
        max_tokens: int,
        eos_ids: frozenset[int],
        detokenizer: Detokenizer | None = None,
    ) -> None:
        if params.stop and detokenizer is None:
            raise RequestError("stop strings need a tokenizer: give one, or use stop_token_ids")
        self.num_tokens = 0
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        """The stop string, or the token of `stop_token_ids`, that ended the sequence."""
        self._stop_ids = frozenset(params.stop_token_ids)
        self._min_tokens = params.min_tokens
        self._max_s = (params.t_max_predict_ms or math.inf) / 1e3
        self._end_s = math.inf
        """When an end of a line ends the sequence."""
        self._has_line = False
        self.tokens_left = max_tokens
        """How many more tokens the sequence may get."""
        self._end_ids = end_ids(params, eos_ids)
        self._stops = dict(zip(params.stop, params.stop))
        """What is looked for, and what it stands for."""
        self._marks: dict[int, str] = {}
        """Stand-ins for hidden control tokens: lone surrogates, which no text has."""
        for stop in params.stop:
            self._stops[self._spelled(stop, detokenizer)] = stop
        behind = params.stop_behind if params.stop else None
        spelled = partial(self._spelled, detokenizer=detokenizer)
        self._scope = None if behind is None else StopScope(behind, spelled)
        self._in_thoughts = {
            stop: given
            for stop, given in self._stops.items()
            if self._scope is not None and self._scope.is_mark(stop)
        }
        """What is looked for in a thought as well."""
        self._hidden = dict.fromkeys(map(ord, self._marks.values()))
        """The marks, as what `str.translate` leaves out."""
        self._keeps_end = params.include_stop_str_in_output
        self._detokenizer = detokenizer
        self._held = ""

    def push(self, token: int) -> str:
        """Count one more token; the text that is final with it. No token follows a `finish_reason`."""
        assert self.finish_reason is None, "the sequence has ended"
        if not self.tokens_left:  # what comes after the prompt is not asked for
            return self._end(FinishReason.LENGTH)
        if not self.num_tokens:
            self._end_s = time.perf_counter() + self._max_s
        self.num_tokens += 1
        self.tokens_left -= 1
        is_end = token in self._end_ids and self.num_tokens >= self._min_tokens
        text = ""
        if self._detokenizer and (self._keeps_end or not is_end):
            text = self._detokenizer.push([token])
            if self._stops:  # else all of it is shown at once
                text = self._release(text + self._marks.get(token, ""))
        if is_end:
            self.stop_reason = token if token in self._stop_ids else None
            text += self._end(FinishReason.STOP)
        elif self.finish_reason is None and not self.tokens_left:
            text += self._end(FinishReason.LENGTH)
        self._has_line = self._has_line or "\n" in text
        if self.finish_reason is None and self._has_line and time.perf_counter() > self._end_s:
            text += self._end(FinishReason.LENGTH)
        return text

    def close(self) -> str:
        """Return the text still held back, when the sequence is cut off from outside."""
        if self.finish_reason is not None:
            return ""
        return self._end(FinishReason.ABORT)

    def _end(self, reason: FinishReason) -> str:
        """End the text; a stop string that only the detokenizer's last text completes still counts."""
        text = self._detokenizer.flush() if self._detokenizer else ""
        if self._stops and self.finish_reason is None:
            text = self._release(text, is_last=True)
        if self.finish_reason is None:
            self.finish_reason = reason
            text, self._held = text + self._held.translate(self._hidden), ""
        return text

    def _spelled(self, text: str, detokenizer: Detokenizer | None) -> str:
        """Write a stop string or a mark with the stand-ins for the control tokens in it."""
        hidden = detokenizer.hidden_in(text) if detokenizer else {}
        for word in sorted(hidden, key=len, reverse=True):
            mark = self._marks.setdefault(hidden[word], chr(_FIRST_MARK + len(self._marks)))
            text = text.replace(word, mark)
        return text

    def _release(self, new: str, *, is_last: bool = False) -> str:
        """Return the text that can be shown now that `new` has come, which may be part of a stop string."""
        parts = [(new, True)] if self._scope is None else self._scope.split(new, is_last=is_last)
        shown = ""
        for part, counts in parts:
            shown += self._released(part, self._stops if counts else self._in_thoughts)
            if self.finish_reason is not None:
                break
        return shown

    def _released(self, new: str, stops: Mapping[str, str]) -> str:
        if self.num_tokens < self._min_tokens:
            return new.translate(self._hidden)
        text, self._held = self._held + new, ""
        if (found := _first_stop(text, [*stops])) is not None:
            self.finish_reason = FinishReason.STOP
            self.stop_reason = stop = stops[text[found.start : found.stop]]
            shown = text[: found.start].translate(self._hidden)
            return shown + (stop if self._keeps_end else "")
        end = len(text) - max((overlap(text, stop) for stop in stops), default=0)
        self._held = text[end:]
        return text[:end].translate(self._hidden)


def _first_stop(text: str, stops: Sequence[str]) -> range | None:
    """Return where the stop string stands that is complete first; of several, the longest."""
    found = [(start + len(stop), start) for stop in stops if (start := text.find(stop)) >= 0]
    if not found:
        return None
    end, start = min(found)
    return range(start, end)
