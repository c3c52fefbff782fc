"""How an answer is written, whole or as server-sent events; each API has a subclass of `Writer`. And its figures."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from starlette.responses import Response

from forerun.engine.stats import SpecStats
from forerun.server.async_request import AsyncRequest, PromptProgress, StreamEvent
from forerun.server.bodies import JsonRequest
from forerun.server.errors import ApiError, of_stream
from forerun.server.http import (
    EVENTS,
    EventStreamResponse,
    JsonResponse,
    cancelled_on_disconnect,
    to_json,
)
from forerun.server.service import Service
from forerun.text.parsing.parser import AnswerParser, PlainParser

Document = dict[str, Any]
NewParser = Callable[[], AnswerParser]
WORDS_AROUND = 8
"""Tokens shown before and after the place where a prompt parts from an earlier one."""


class Writer(ABC):
    """Write the answer to a request. The subclasses are the forms that APIs give it, as documents."""

    done = b""
    """Stands at the end of a stream."""
    media_type = EVENTS

    def __init__(
        self,
        service: Service,
        running: AsyncRequest,
        model: str | None,
        new_parser: NewParser = PlainParser,
    ) -> None:
        """`model` is what the request calls it; `new_parser` makes what splits each completion."""
        self.running, self.model, self.llm = running, service.name(model), service.llm()
        self.parsers = [new_parser() for _ in running.runs]
        self.end_s = 0.0
        """When the last step ended that had events."""
        self._observe = service.metrics.follow(running)
        self._ping_s = service.config.sse_ping_interval

    @abstractmethod
    def document(self) -> Any:
        """Write an answer that is complete."""

    @abstractmethod
    def chunks(self, events: Sequence[StreamEvent]) -> Iterator[Document]:
        """Write what came since the last call; nothing if there is nothing to show."""

    def fail(self, error: ApiError) -> Document:
        """Write what went wrong after the first event, which ends the stream."""
        return error.document()

    def begin(self) -> Iterator[Document]:
        """Write the first events, when the request was accepted; its prompt may take a minute to read."""
        yield from ()

    def read(self, progress: PromptProgress) -> Iterator[Document]:
        """Write how far a prompt was read."""
        yield from ()

    @abstractmethod
    def keep_alive(self) -> bytes:
        """Write what stands where nothing else has come for a while, such as while a prompt is read.

        It is what clients of the API wait for: comments do not stop every timer.
        """

    def end(self) -> Iterator[Document]:
        """Write the last events."""
        yield from ()

    def frame(self, document: Document) -> bytes:
        """Write a document into a stream: a server-sent event, which is named by its `type` if it has one."""
        kind = document.get("type")
        name = f"event: {kind}\n".encode() if kind else b""
        return b"%sdata: %s\n\n" % (name, to_json(document))

    def timings(self, end_s: float | None = None) -> Document:
        """Write the figures up to a time, or to the last event."""
        end_s = self.end_s if end_s is None else end_s
        return timings(self.running, end_s, self.llm.drafter_spec.name) | self._parting()

    def _parting(self) -> Document:
        """Say where the first prompt parts from an earlier one, with its own words around that place."""
        seq = self.running.handles[0].runs[0].seq
        if (at := seq.parts_at) is None:
            return {}
        words = seq.tokens[max(0, at - WORDS_AROUND) : min(at + WORDS_AROUND, seq.num_prompt)]
        return {"cache_parts_at": at, "cache_parts_in": self.llm.tokenizer.decode(words)}

    async def reply(self, request: JsonRequest, *, stream: bool) -> Response:
        """Answer, as a stream or when all is there; a client that goes away ends the request."""
        request.state.entry.running = self.running
        if stream:
            return EventStreamResponse(
                self._stream(), self.running.cancel, self.keep_alive, self._ping_s, self.media_type
            )
        async with cancelled_on_disconnect(request.receive, self.running.cancel):
            async for _ in self._events():
                pass
            return await JsonResponse.written(self.document)

    async def _stream(self) -> AsyncIterator[bytes]:
        try:
            if first := await asyncio.to_thread(self._framed, self.begin):
                yield first
            async for events in self._events():
                progress, self.running.progress = self.running.progress, []
                documents = [one for each in progress for one in self.read(each)]
                if documents := [*documents, *self.chunks(events)]:
                    yield b"".join(map(self.frame, documents))
            last = await asyncio.to_thread(self._framed, self.end)
        except Exception as error:
            last = self.frame(self.fail(of_stream(error)))
        if last := last + self.done:
            yield last

    def _framed(self, write: Callable[[], Iterator[Document]]) -> bytes:
        """Write the first or the last documents, which repeat the request or the whole answer."""
        return b"".join(map(self.frame, write()))

    async def _events(self) -> AsyncIterator[list[StreamEvent]]:
        """Follow the request. Raises what ended it."""
        async for events in self.running.events():
            for one in events:
                self._observe(one)
                self.end_s = one.time_s
            yield events


def prompt_progress(progress: PromptProgress) -> Document:
    """Write llama-server's figures of a prompt that is being read."""
    return {
        "total": progress.num_prompt,
        "cache": progress.num_cached,
        "processed": progress.num_read,
        "time_ms": round(progress.seconds * 1e3),
    }


def usage(request: AsyncRequest) -> Document:
    """Count the tokens read and written so far; a prompt counts once, whatever n is."""
    firsts = [handle.runs[0].seq for handle in request.handles]
    num_prompt = sum(seq.num_prompt for seq in firsts)
    num_new = sum(len(run.seq.tokens) - run.seq.num_prompt for run in request.runs)
    counts: Document = {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_new,
        "total_tokens": num_prompt + num_new,
        "prompt_tokens_details": {"cached_tokens": sum(seq.num_reused for seq in firsts)},
    }
    if (parts_at := firsts[0].parts_at) is not None:
        counts["prompt_tokens_details"]["parts_at"] = parts_at
    predictions = [run.prediction for run in request.runs if run.prediction is not None]
    if predictions:
        counts["completion_tokens_details"] = {
            "accepted_prediction_tokens": sum(one.accepted for one in predictions),
            "rejected_prediction_tokens": sum(one.rejected for one in predictions),
        }
    return counts


def timings(request: AsyncRequest, end_s: float, drafter: str) -> Document:
    """Write llama-server's figures of a request that has ended at `end_s`, and what the drafter of that name guessed.

    The prompt's time is the time to the first token, waiting included. The answer's time begins with that token, and
    `predicted_per_second` counts those after it: the speed of decoding.
    """
    counts, runs = usage(request), request.runs
    stats = SpecStats.total(run.stats for run in runs)
    firsts = [run.first_token_s for run in runs if run.first_token_s is not None]
    first_s = min(firsts, default=end_s)
    cached, num_new = counts["prompt_tokens_details"]["cached_tokens"], counts["completion_tokens"]
    num_read = counts["prompt_tokens"] - cached
    num_later = max(num_new - len(firsts), 0)
    prompt_ms = round((first_s - request.start_s) * 1e3, 3)
    predicted_ms = round((end_s - first_s) * 1e3, 3)
    most = request.handles[0].runs[0].seq.params.max_draft
    return {
        "drafter": "none" if most == 0 else drafter,
        **({} if most is None else {"max_draft": most}),
        "cache_n": cached,
        "cache_disk_n": sum(handle.runs[0].seq.num_from_disk for handle in request.handles),
        "prompt_n": num_read,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / num_read if num_read else 0.0,
        "prompt_per_second": _rate(num_read, prompt_ms),
        "predicted_n": num_new,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / num_later if num_later else 0.0,
        "predicted_per_second": _rate(num_later, predicted_ms),
        "draft_n": stats.drafted,
        "draft_n_accepted": stats.accepted,
        "passes": stats.passes,
        "tokens_per_pass": round(stats.tau, 3),
    }


def _rate(count: int, ms: float) -> float:
    return count / ms * 1e3 if ms > 0 else 0.0
