"""OpenAI's documents of completions and chat completions, with vLLM's and llama-server's additions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

import forerun
from forerun.core.types import Event, FinishReason, TokenLogprob
from forerun.engine.outputs import RequestOutput
from forerun.engine.request import RequestHandle
from forerun.server.answers import Document, Writer, prompt_progress, timings, usage
from forerun.server.errors import ApiError
from forerun.server.progress import PromptProgress
from forerun.server.schema import ChatRequest, CompletionRequest, StreamOptions
from forerun.server.service import Service
from forerun.server.worker import AsyncRequest, StreamEvent
from forerun.text.answers.parser import AnswerParser, PlainParser
from forerun.text.answers.parts import ArgumentsPart, CallPart, Part, ReasoningPart, TextPart

NewParser = Callable[[], AnswerParser]


class OpenAIWriter(Writer):
    """Write a completion, or a chat completion: an entry of `choices` for each of a request's completions."""

    done = b"data: [DONE]\n\n"

    def __init__(
        self,
        service: Service,
        running: AsyncRequest,
        body: CompletionRequest | ChatRequest,
        new_parser: NewParser = PlainParser,
    ) -> None:
        """`new_parser` makes what splits an answer."""
        super().__init__(service, running, service.name(body.model))
        self.options, self._new_parser = body.stream_options or StreamOptions(), new_parser
        self.is_chat = isinstance(body, ChatRequest)
        self.with_timings, self.with_ids = body.timings_per_token, body.return_token_ids
        self.with_prompt = isinstance(body, CompletionRequest) and body.echo
        self._head = {
            "id": ("chatcmpl-" if self.is_chat else "cmpl-") + uuid.uuid4().hex,
            "object": "chat.completion" if self.is_chat else "text_completion",
            "created": int(time.time()),
            "model": self.model,
            "system_fingerprint": f"forerun-{forerun.__version__}",
        }
        self._offsets: dict[int, int] = {}
        """By completion that has begun: where the text of its next token begins, counted by tokens."""
        self._parsers: dict[int, AnswerParser] = {}

    def document(self) -> Document:
        """Write the whole completion."""
        choices: list[Document] = []
        for handle in self.running.handles:
            choices += self._choices(handle, len(choices))
        found = {**self._head, "choices": choices, **self._figures()}
        (first, *others) = self.running.handles
        if self.is_chat and not others:
            found |= self._of_prompt(first.output())
        return found

    def begin(self) -> Iterator[Document]:
        """Write who speaks, of a chat: a chunk for each completion."""
        for index in range(len(self.running.runs) if self.is_chat else 0):
            said = {"role": "assistant", "content": ""}
            yield self._without_text(index, {"delta": said}, {})

    def read(self, progress: PromptProgress) -> Iterator[Document]:
        """Write a chunk without text."""
        said: Document = {"delta": {}} if self.is_chat else {"text": ""}
        more = {"prompt_progress": prompt_progress(progress)}
        yield self._without_text(progress.completion, said, more)

    def chunks(self, events: Sequence[StreamEvent]) -> Iterator[Document]:
        """Write a chunk for each completion that got something to show."""
        for step in _joined(events):
            if (choice := self._delta(step)) is not None:
                yield self._chunk([choice], self._figures_so_far(step))

    def end(self) -> Iterator[Document]:
        """Write the figures if they were asked for."""
        if self.options.include_usage:
            yield self._chunk([], self._figures())

    def fail(self, error: ApiError) -> Document:
        """Write the error."""
        return error.document()

    def _chunk(self, choices: list[Document], more: Document) -> Document:
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices, **more}

    def _without_text(self, index: int, said: Document, more: Document) -> Document:
        choice = {"index": index, **said, "logprobs": None, "finish_reason": None}
        if self.with_ids:
            choice["token_ids"] = []
        if self.with_timings:
            more["timings"] = self._timings(time.perf_counter())
        return self._chunk([choice], self._usage_so_far() | more)

    def _timings(self, end_s: float) -> Document:
        return timings(self.running, end_s, self.llm.drafter_spec.name)

    def _usage_so_far(self) -> Document:
        if self.options.continuous_usage_stats:
            return {"usage": usage(self.running)}
        return {"usage": None} if self.options.include_usage else {}

    def _figures_so_far(self, step: StreamEvent) -> Document:
        more = self._usage_so_far()
        is_last = step.event.finish_reason is not None and all(
            handle.is_finished for handle in self.running.handles
        )
        if self.with_timings or (is_last and not more):
            more["timings"] = self._timings(step.time_s)
        return more

    def _delta(self, step: StreamEvent) -> Document | None:
        """Write what a chunk adds to a choice."""
        event, index, run = step.event, step.completion, self.running.runs[step.completion]
        is_first = index not in self._offsets
        offset = self._offsets.setdefault(index, 0)
        logprobs, text, reason = None, event.text, event.finish_reason
        if event.logprobs:
            logprobs = self._logprobs(event.logprobs, offset)
            texts = (self.llm.tokenizer.text_of(one.token_id) for one in event.logprobs)
            self._offsets[index] += sum(map(len, texts))
        if is_first and self.with_prompt:
            handle = self.running.handles[index // len(self.running.handles[0].runs)]
            text = self._prompt_text(handle.output()) + text
        parser = self._parsers.setdefault(index, self._new_parser())
        num_calls = parser.num_calls
        parts = parser.read(text, is_last=reason is not None)
        with_pieces = self.options.include_pieces and bool(event.pieces)
        has_prompt = is_first and not self.is_chat
        if not (parts or logprobs or reason or has_prompt or self.with_ids or with_pieces):
            return None
        choice = {
            "index": index,
            **self._said(parts, num_calls),
            "logprobs": logprobs,
        }
        choice["finish_reason"] = _reason(reason, parser.num_calls)
        if reason is not None:
            choice["stop_reason"] = run.stops.stop_reason
        if with_pieces:
            choice["pieces"] = [asdict(piece) for piece in event.pieces]
        if self.with_ids:
            choice["token_ids"] = event.token_ids
            if is_first:
                choice["prompt_token_ids"] = run.seq.tokens[: run.seq.num_prompt]
        return choice

    def _said(self, parts: Sequence[Part], num_calls: int) -> Document:
        """Write what a chunk says; `num_calls` had begun before it."""
        text = _text(parts)
        if not self.is_chat:
            return {"text": text}
        content = _thoughts(parts) | ({"content": text} if text else {})
        calls = _calls(parts, num_calls)
        return {"delta": content | ({"tool_calls": calls} if calls else {})}

    def _choices(self, handle: RequestHandle, start: int) -> list[Document]:
        """Write the completions of one prompt; the first has the index `start`."""
        choices, output = [], handle.output()
        for i, (one, run) in enumerate(zip(output.outputs, handle.runs, strict=True), start):
            logprobs = None if one.logprobs is None else self._logprobs(run.logprobs, 0)
            text = one.text
            if self.with_prompt:
                text = self._prompt_text(output) + text
                if logprobs is not None:
                    scored = [*handle.runs[0].prompt_logprobs, *run.logprobs]
                    logprobs = self._echoed(output.prompt_token_ids[0], scored)
            parser = self._new_parser()
            said = self._whole(parser.read(text, is_last=True))
            choice = {"index": i, **said, "logprobs": logprobs}
            choice["finish_reason"] = _reason(one.finish_reason, parser.num_calls)
            choice["stop_reason"] = one.stop_reason
            if not self.is_chat:
                choice |= self._of_prompt(output)
            if self.with_ids:
                choice["token_ids"] = one.token_ids
            choices.append(choice)
        return choices

    def _whole(self, parts: Sequence[Part]) -> Document:
        """Write what a choice says."""
        text, calls = _text(parts), _calls(parts, 0)
        if not self.is_chat:
            return {"text": text}
        message: Document = {"role": "assistant", "content": text, "refusal": None}
        message |= _thoughts(parts)
        if calls:
            message["content"] = text or None
            message["tool_calls"] = [
                {name: value for name, value in call.items() if name != "index"} for call in calls
            ]
        return {"message": message}

    def _figures(self) -> Document:
        return {"usage": usage(self.running), "timings": self.timings()}

    def _of_prompt(self, output: RequestOutput) -> Document:
        """Write what was asked for of a prompt, in vLLM's form."""
        found: Document = {}
        if output.prompt_logprobs is not None and not self.with_prompt:
            found["prompt_logprobs"] = [
                None if one is None else {str(token): asdict(entry) for token, entry in one.items()}
                for one in output.prompt_logprobs
            ]
        if self.with_ids:
            found["prompt_token_ids"] = output.prompt_token_ids
        return found

    def _prompt_text(self, output: RequestOutput) -> str:
        if output.prompt is not None:
            return output.prompt
        return "".join(map(self.llm.tokenizer.text_of, output.prompt_token_ids))

    def _logprobs(self, found: Sequence[TokenLogprob], offset: int) -> Document:
        """Write log-probabilities; `offset` is where the tokens' text begins in the answer."""
        text_of = self.llm.tokenizer.text_of
        if self.is_chat:
            return {"content": [self._chat_logprob(one) for one in found]}
        texts = [text_of(one.token_id) for one in found]
        starts = [offset + sum(map(len, texts[:i])) for i in range(len(texts))]
        tops = [{text_of(token): value for token, value in one.top} for one in found]
        for one, text, top in zip(found, texts, tops, strict=True):
            top.setdefault(text, one.logprob)
        return {
            "tokens": texts,
            "token_logprobs": [one.logprob for one in found],
            "top_logprobs": tops,
            "text_offset": starts,
        }

    def _chat_logprob(self, one: TokenLogprob) -> Document:
        def entry(token: int, value: float) -> Document:
            spelled = self.llm.tokenizer.token_bytes(token)
            return {
                "token": self.llm.tokenizer.text_of(token),
                "logprob": value,
                "bytes": None if spelled is None else [*spelled],
            }

        top = [entry(token, value) for token, value in one.top]
        return entry(one.token_id, one.logprob) | {"top_logprobs": top}

    def _echoed(self, token: int, scored: list[TokenLogprob]) -> Document:
        """Write log-probabilities of prompt and answer; the first token has none."""
        first = self.llm.tokenizer.text_of(token)
        made = self._logprobs(scored, len(first))
        before = {"tokens": first, "token_logprobs": None, "top_logprobs": None, "text_offset": 0}
        return {name: [before[name], *values] for name, values in made.items()}


def _text(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def _thoughts(parts: Sequence[Part]) -> Document:
    """Write what the model thinks, by the names of llama-server and DeepSeek and of vLLM."""
    text = "".join(part.text for part in parts if isinstance(part, ReasoningPart))
    return {"reasoning_content": text, "reasoning": text} if text else {}


def _calls(parts: Sequence[Part], index: int) -> list[Document]:
    """Write one entry a call, the first new one with this index: clients look for no second one in a chunk."""
    found: dict[int, Document] = {}
    index -= 1
    for part in parts:
        if isinstance(part, CallPart):
            index += 1
            function = {"name": part.name, "arguments": ""}
            found[index] = {"index": index, "id": part.id, "type": "function", "function": function}
        elif isinstance(part, ArgumentsPart):
            call = found.setdefault(index, {"index": index, "function": {"arguments": ""}})
            call["function"]["arguments"] += part.text
    return [*found.values()]


def _reason(reason: FinishReason | None, num_calls: int) -> str | None:
    """Say why a completion ended, by OpenAI's names."""
    if reason is FinishReason.STOP and num_calls:
        return "tool_calls"
    return None if reason is None else reason.value


def _joined(found: Sequence[StreamEvent]) -> Sequence[StreamEvent]:
    """Join what came together into one event for each completion."""
    if len(found) == 1:
        return found
    parts: dict[int, list[StreamEvent]] = {}
    for step in found:
        parts.setdefault(step.completion, []).append(step)
    return [own[0] if len(own) == 1 else _join(own) for own in parts.values()]


def _join(parts: list[StreamEvent]) -> StreamEvent:
    events, last = [step.event for step in parts], parts[-1]
    logprobs = tuple(one for event in events for one in event.logprobs or ())
    event = Event(
        last.event.seq_id,
        tuple(token for event in events for token in event.token_ids),
        tuple(piece for event in events for piece in event.pieces),
        logprobs or None,
        last.event.finish_reason,
    )
    return last._replace(event=event)
