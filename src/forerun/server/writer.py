"""Writes the answer to one request: whole, or chunk by chunk as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field

from forerun.core.types import Event, FinishReason, TokenLogprob
from forerun.engine.outputs import RequestOutput
from forerun.engine.sequence import SequenceState
from forerun.server.answers import Document, DocumentHead, Words, prompt_logprobs, timings, usage
from forerun.server.errors import of_stream
from forerun.server.http import to_json
from forerun.server.parts import Reader, whole
from forerun.server.schema import StreamOptions
from forerun.server.worker import AsyncRequest, StreamEvent

DONE = b"data: [DONE]\n\n"


@dataclass(slots=True, kw_only=True)
class Writer:
    """One request's answer. `observe` is called with all that comes."""

    request: AsyncRequest
    head: DocumentHead
    drafter: str
    words: Words
    observe: Callable[[StreamEvent], object]
    options: StreamOptions
    with_timings: bool = False
    """Every chunk tells the figures so far."""
    with_ids: bool = False
    with_prompt: bool = False
    """The prompt's text comes before the answer."""
    with_tools: bool = False
    """Tool calls in the text are told as such."""
    _end_s: float = 0.0
    _offsets: dict[int, int] = field(default_factory=dict)
    """By completion that has begun: where the text of its next token begins, counted by tokens."""
    _readers: dict[int, Reader] = field(default_factory=dict)

    async def whole(self) -> Document:
        """The document, when the answer is complete. Raises what ended the request."""
        async for found in self.request.news():
            for news in found:
                self._take(news)
        choices: list[Document] = []
        for handle in self.request.handles:
            choices += self._choices(handle.output(), len(choices))
        document = self.head.whole(choices) | self._figures()
        (first, *others) = self.request.handles
        if self.head.style.is_chat and not others:
            document |= self._of_prompt(first.output())
        return document

    async def stream(self) -> AsyncIterator[bytes]:
        """The events: chunks, what went wrong if anything did, and the end mark."""
        wants_usage = self.options.include_usage
        try:
            async for found in self.request.news():
                for news in found:
                    self._take(news)
                if chunks := b"".join(map(self._chunk, _joined(found))):
                    yield chunks
        except Exception as error:
            yield _event(of_stream(error).document())
        else:
            if wants_usage:
                yield _event(self.head.chunk([]) | self._figures())
        yield DONE

    def _chunk(self, news: StreamEvent) -> bytes:
        """A chunk for what one completion got; nothing if there is nothing to show."""
        choice = self._delta(news)
        if choice is None:
            return b""
        document = self.head.chunk([choice])
        if self.options.continuous_usage_stats:
            document["usage"] = usage(self.request)
        elif self.options.include_usage:
            document["usage"] = None
        is_last = news.event.finish_reason is not None and self._is_finished()
        if self.with_timings or (is_last and "usage" not in document):
            document["timings"] = timings(self.request, news.time_s, self.drafter)
        return _event(document)

    def _delta(self, news: StreamEvent) -> Document | None:
        event, index, style = news.event, news.completion, self.head.style
        is_first = index not in self._offsets
        offset = self._offsets.setdefault(index, 0)
        logprobs, text, reason = None, event.text, event.finish_reason
        if event.logprobs:
            logprobs = style.logprobs(event.logprobs, self.words, offset)
            self._offsets[index] += sum(
                len(self.words.text(one.token_id)) for one in event.logprobs
            )
        if is_first and self.with_prompt:
            text = self._prompt_text(index) + text
        reader = self._readers.setdefault(index, Reader(with_tools=self.with_tools))
        deltas = reader.read(text, is_last=reason is not None)
        with_pieces = self.options.include_pieces and bool(event.pieces)
        if not (deltas or logprobs or reason or is_first or self.with_ids or with_pieces):
            return None
        choice = style.delta(index, deltas, logprobs, _reason(reason, reader.has_calls))
        if is_first and style.is_chat:
            choice["delta"] = {"role": "assistant", "content": "", **choice["delta"]}
        if reason is not None:
            choice["stop_reason"] = self._run(index).stops.stop_reason
        if with_pieces:
            choice["pieces"] = [asdict(piece) for piece in event.pieces]
        if self.with_ids:
            choice["token_ids"] = event.token_ids
            if is_first:
                seq = self._run(index).seq
                choice["prompt_token_ids"] = seq.tokens[: seq.num_prompt]
        return choice

    def _run(self, index: int) -> SequenceState:
        return [run for handle in self.request.handles for run in handle.runs][index]

    def _is_finished(self) -> bool:
        return all(handle.is_finished for handle in self.request.handles)

    def _take(self, news: StreamEvent) -> None:
        self.observe(news)
        self._end_s = news.time_s

    def _figures(self) -> Document:
        return {
            "usage": usage(self.request),
            "timings": timings(self.request, self._end_s, self.drafter),
        }

    def _choices(self, output: RequestOutput, start: int) -> list[Document]:
        """The completions of one prompt; the first has the index `start`."""
        style, choices = self.head.style, []
        handle = next(one for one in self.request.handles if one.id == output.request_id)
        for i, (one, run) in enumerate(zip(output.outputs, handle.runs, strict=True), start):
            logprobs = None
            if one.logprobs is not None:
                logprobs = style.logprobs(run.logprobs, self.words, 0)
            text = one.text
            if self.with_prompt:
                text = self._text_of(output) + text
                if logprobs is not None:
                    logprobs = self._echoed(handle.runs[0].prompt_logprobs, output, run.logprobs)
            said, calls = whole(text, with_tools=self.with_tools)
            reason = _reason(one.finish_reason, bool(calls))
            choice = style.choice(i, said, calls, logprobs, reason)
            choice["stop_reason"] = one.stop_reason
            if not style.is_chat:
                choice |= self._of_prompt(output)
            if self.with_ids:
                choice["token_ids"] = one.token_ids
            choices.append(choice)
        return choices

    def _of_prompt(self, output: RequestOutput) -> Document:
        """What was asked for of a prompt."""
        found: Document = {}
        if output.prompt_logprobs is not None and not self.with_prompt:
            found["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
        if self.with_ids:
            found["prompt_token_ids"] = output.prompt_token_ids
        return found

    def _echoed(
        self, scored: list[TokenLogprob], output: RequestOutput, found: list[TokenLogprob]
    ) -> Document:
        """Log-probabilities of prompt and answer; the first token has none."""
        first = self.words.text(output.prompt_token_ids[0])
        made = self.head.style.logprobs([*scored, *found], self.words, len(first))
        before = {"tokens": first, "token_logprobs": None, "top_logprobs": None, "text_offset": 0}
        return {name: [before[name], *values] for name, values in made.items()}

    def _prompt_text(self, index: int) -> str:
        num_each = len(self.request.handles[0].runs)
        return self._text_of(self.request.handles[index // num_each].output())

    def _text_of(self, output: RequestOutput) -> str:
        if output.prompt is not None:
            return output.prompt
        return "".join(map(self.words.text, output.prompt_token_ids))


def _reason(reason: FinishReason | None, has_calls: bool) -> str | None:
    """Why a completion ended, in OpenAI's words."""
    if reason is FinishReason.STOP and has_calls:
        return "tool_calls"
    return None if reason is None else reason.value


def _joined(found: list[StreamEvent]) -> list[StreamEvent]:
    """What came together as one piece of news for each completion."""
    if len(found) == 1:
        return found
    parts: dict[int, list[StreamEvent]] = {}
    for news in found:
        parts.setdefault(news.completion, []).append(news)
    return [own[0] if len(own) == 1 else _join(own) for own in parts.values()]


def _join(parts: list[StreamEvent]) -> StreamEvent:
    events, last = [news.event for news in parts], parts[-1]
    logprobs = tuple(one for event in events for one in event.logprobs or ())
    event = Event(
        last.event.seq_id,
        tuple(token for event in events for token in event.token_ids),
        tuple(piece for event in events for piece in event.pieces),
        logprobs or None,
        last.event.finish_reason,
    )
    return last._replace(event=event)


def _event(document: Document) -> bytes:
    return b"data: " + to_json(document) + b"\n\n"
