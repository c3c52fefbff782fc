"""OpenAI's documents of one answer."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

from forerun.compat.documents import (
    Document,
    Places,
    chat_logprobs,
    completion_logprobs,
    delta_of,
    message_of,
    reason_of,
)
from forerun.core.types import Event, FinishReason
from forerun.engine.loop import Request
from forerun.text.parsing.parser import AnswerParser
from forerun.text.tokenizer import Tokenizer


class Answer:
    """A request as OpenAI's document, or as its chunks."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        request: Request,
        parser: AnswerParser | None,
        model: str,
        shown: str = "",
    ) -> None:
        """`parser` splits a chat's answer; `model` is what the document calls it, `shown` what comes first."""
        self.tokenizer, self.request, self.parser = tokenizer, request, parser
        self.shown, self.places = shown, Places(tokenizer)
        is_chat = parser is not None
        self.head = {
            "id": ("chatcmpl-" if is_chat else "cmpl-") + str(uuid.uuid4()),
            "object": "chat.completion" if is_chat else "text_completion",
            "created": int(time.time()),
            "model": model,
        }

    def document(self) -> Document:
        """Wait for the whole answer. Raises what ended it."""
        self.request.wait()
        output, run = self.request.output(), self.request.runs[0]
        (one,) = output.outputs
        reason, num_calls = one.finish_reason, 0
        if self.parser is None:
            content: Document = {"text": self.shown + one.text}
        else:
            parts = self.parser.read(one.text, is_last=True, is_cut=reason is FinishReason.LENGTH)
            content, num_calls = {"message": message_of(parts)}, self.parser.num_calls
        wanted = one.logprobs is not None
        logprobs = self._logprobs(run.logprobs) if wanted else None
        choice = {"index": 0, **content, "logprobs": logprobs}
        choice["finish_reason"] = reason_of(reason, num_calls)
        counts = len(output.prompt_token_ids), len(one.token_ids)
        usage = {"prompt_tokens": counts[0], "completion_tokens": counts[1]}
        return {
            **self.head,
            "choices": [choice],
            "usage": usage | {"total_tokens": sum(counts)},
        }

    def chunks(self) -> Iterator[Document]:
        """Yield chunks as they come. Leaving the loop ends the answer."""
        if self.parser is not None:
            yield self._chunk({"delta": {"role": "assistant"}})
        elif self.shown:
            yield self._chunk({"text": self.shown})
        for event in self.request:
            yield from self._of_event(event)

    def _of_event(self, event: Event) -> Iterator[Document]:
        reason, num_calls = event.finish_reason, 0
        logprobs = self._logprobs(event.logprobs) if event.logprobs else None
        if self.parser is None:
            if event.text or logprobs or reason:
                yield self._chunk({"text": event.text}, logprobs, reason_of(reason, 0))
            return
        before = self.parser.num_calls
        is_cut = reason is FinishReason.LENGTH
        parts = self.parser.read(event.text, is_last=reason is not None, is_cut=is_cut)
        if delta := delta_of(parts, before):
            yield self._chunk({"delta": delta}, logprobs)
        if reason is not None:
            num_calls = self.parser.num_calls
            yield self._chunk({"delta": {}}, None, reason_of(reason, num_calls))

    def _chunk(
        self, content: Document, logprobs: Document | None = None, reason: str | None = None
    ) -> Document:
        kind = "text_completion" if self.parser is None else "chat.completion.chunk"
        choice = {"index": 0, **content, "logprobs": logprobs, "finish_reason": reason}
        return {**self.head, "object": kind, "choices": [choice]}

    def _logprobs(self, scored: Any) -> Document:
        if self.parser is not None:
            return chat_logprobs(self.tokenizer, scored)
        return completion_logprobs(self.tokenizer, scored, self.places)
