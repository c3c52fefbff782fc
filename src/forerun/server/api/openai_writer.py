"""OpenAI's documents of completions and chat completions, with vLLM's and llama-server's additions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import forerun
from forerun.compat.documents import (
    Places,
    chat_logprobs,
    completion_logprobs,
    delta_of,
    message_of,
    reason_of,
    text_of,
)
from forerun.core.types import Event, FinishReason, TokenLogprob
from forerun.engine.loop import Request
from forerun.engine.outputs import RequestOutput
from forerun.engine.sequence import SequenceState
from forerun.server.async_request import AsyncRequest, PromptProgress, StreamEvent
from forerun.server.schema import AnswerRequest, StreamOptions
from forerun.server.service import Service
from forerun.server.writer import Document, NewParser, Writer, prompt_progress, usage
from forerun.text.parsing.parser import PlainParser


class OpenAIWriter(Writer):
    """Write a completion, or a chat completion: an entry of `choices` for each of a request's completions."""

    done = b"data: [DONE]\n\n"

    def __init__(
        self,
        service: Service,
        running: AsyncRequest,
        body: AnswerRequest,
        new_parser: NewParser | None = None,
        *,
        with_prompt: bool = False,
    ) -> None:
        """`new_parser` makes what splits a chat's answer. `with_prompt`: the prompt's text comes first."""
        super().__init__(service, running, body.model, new_parser or PlainParser)
        self.is_chat, self.with_prompt = new_parser is not None, with_prompt
        self.options = body.stream_options or StreamOptions()
        self.with_timings, self.with_ids = body.timings_per_token, body.return_token_ids
        self._head = {
            "id": ("chatcmpl-" if self.is_chat else "cmpl-") + uuid.uuid4().hex,
            "object": "chat.completion" if self.is_chat else "text_completion",
            "created": int(time.time()),
            "model": self.model,
            "system_fingerprint": f"forerun-{forerun.__version__}",
        }
        self._places: dict[int, Places] = {}
        """Of completions that have begun."""

    def document(self) -> Document:
        """Write the whole completion."""
        choices: list[Document] = []
        for handle in self.running.handles:
            choices += self._choices(handle, len(choices))
        of_prompt = self._of_prompt(self.running.handles[0].output()) if self.is_chat else {}
        return {**self._head, "choices": choices, **self._figures(), **of_prompt}

    def begin(self) -> Iterator[Document]:
        """Write who speaks, of a chat: a chunk for each completion."""
        for index in range(len(self.running.runs) if self.is_chat else 0):
            delta = {"role": "assistant", "content": ""}
            yield self._without_text(index, {"delta": delta}, {})

    def read(self, progress: PromptProgress) -> Iterator[Document]:
        """Write a chunk without text."""
        content: Document = {"delta": {}} if self.is_chat else {"text": ""}
        more = {"prompt_progress": prompt_progress(progress)}
        yield self._without_text(progress.completion, content, more)

    def keep_alive(self) -> bytes:
        """Write a chunk without text."""
        content: Document = {"delta": {}} if self.is_chat else {"text": ""}
        return self.frame(self._without_text(0, content, {}))

    def chunks(self, events: Sequence[StreamEvent]) -> Iterator[Document]:
        """Write a chunk for each completion that got something to show."""
        figures: dict[bool, Document] = {}
        for step in _joined(events):
            if (choice := self._delta(step)) is not None:
                is_end = step.event.finish_reason is not None
                if (
                    is_end not in figures
                ):  # once for what came together: all completions are counted
                    figures[is_end] = self._figures_so_far(is_end)
                yield self._chunk([choice], figures[is_end])

    def end(self) -> Iterator[Document]:
        """Write the figures if they were asked for."""
        if self.options.include_usage:
            yield self._chunk([], self._figures())

    def _chunk(self, choices: list[Document], more: Document) -> Document:
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices, **more}

    def _without_text(self, index: int, content: Document, more: Document) -> Document:
        choice = {"index": index, **content, "logprobs": None, "finish_reason": None}
        if self.with_ids:
            choice["token_ids"] = []
        if self.with_timings:
            more["timings"] = self.timings(time.perf_counter())
        return self._chunk([choice], self._usage_so_far() | more)

    def _usage_so_far(self) -> Document:
        if self.options.continuous_usage_stats:
            return {"usage": usage(self.running)}
        return {"usage": None} if self.options.include_usage else {}

    def _figures_so_far(self, is_end: bool) -> Document:
        """Write the figures of a chunk; `is_end`: a completion ends with it."""
        more = self._usage_so_far()
        is_last = is_end and all(handle.is_finished for handle in self.running.handles)
        if self.with_timings or (is_last and not more):
            more["timings"] = self.timings()
        return more

    def _delta(self, step: StreamEvent) -> Document | None:
        """Write what a chunk adds to a choice."""
        event, index, run = step.event, step.completion, self.running.runs[step.completion]
        is_first = index not in self._places
        places = self._places.setdefault(index, Places(self.llm.tokenizer, run.seq.params))
        logprobs, text, reason = None, event.text, event.finish_reason
        if event.logprobs:
            scored = _shown(run, event.logprobs) if event.finish_reason else event.logprobs
            logprobs = self._logprobs(scored, places)
        if is_first and self.with_prompt:
            handle = self.running.handles[index // len(self.running.handles[0].runs)]
            text = self._prompt_text(handle.output()) + text
        parser = self.parsers[index]
        num_calls = parser.num_calls
        is_cut = reason is FinishReason.LENGTH
        parts = parser.read(text, is_last=reason is not None, is_cut=is_cut)
        with_pieces = self.options.include_pieces and bool(event.pieces)
        has_prompt = is_first and not self.is_chat
        if not (parts or logprobs or reason or has_prompt or self.with_ids or with_pieces):
            return None
        content = (
            {"delta": delta_of(parts, num_calls)} if self.is_chat else {"text": text_of(parts)}
        )
        choice: Document = {"index": index, **content, "logprobs": logprobs}
        choice["finish_reason"] = reason_of(reason, parser.num_calls)
        if reason is not None:
            choice["stop_reason"] = run.stops.stop_reason
        if with_pieces:
            choice["pieces"] = [piece._asdict() for piece in event.pieces]
        if self.with_ids:
            choice["token_ids"] = event.token_ids
            if is_first:
                choice["prompt_token_ids"] = run.seq.tokens[: run.seq.num_prompt]
        return choice

    def _choices(self, handle: Request, start: int) -> list[Document]:
        """Write the completions of one prompt; the first has the index `start`."""
        choices, output = [], handle.output()
        for i, (one, run) in enumerate(zip(output.outputs, handle.runs, strict=True), start):
            shown = _shown(run, run.logprobs)
            places = Places(self.llm.tokenizer, run.seq.params)
            logprobs = None if one.logprobs is None else self._logprobs(shown, places)
            text = one.text
            if self.with_prompt:
                text = self._prompt_text(output) + text
                if logprobs is not None:
                    scored = handle.runs[0].prompt_logprobs
                    logprobs = self._echoed(output, scored, logprobs)
            parser = self.parsers[i]
            is_cut = one.finish_reason is FinishReason.LENGTH
            parts = parser.read(text, is_last=True, is_cut=is_cut)
            content = {"message": message_of(parts)} if self.is_chat else {"text": text_of(parts)}
            choice: Document = {"index": i, **content, "logprobs": logprobs}
            choice["finish_reason"] = reason_of(one.finish_reason, parser.num_calls)
            choice["stop_reason"] = one.stop_reason
            if not self.is_chat:
                choice |= self._of_prompt(output)
            if self.with_ids:
                choice["token_ids"] = one.token_ids
            choices.append(choice)
        return choices

    def _figures(self) -> Document:
        return {"usage": usage(self.running), "timings": self.timings()}

    def _of_prompt(self, output: RequestOutput) -> Document:
        """Write what was asked for of a prompt, in vLLM's form."""
        fields: Document = {}
        if output.prompt_logprobs is not None and not self.with_prompt:
            fields["prompt_logprobs"] = [
                None if one is None else {str(token): asdict(entry) for token, entry in one.items()}
                for one in output.prompt_logprobs
            ]
        if self.with_ids:
            fields["prompt_token_ids"] = output.prompt_token_ids
        return fields

    def _prompt_text(self, output: RequestOutput) -> str:
        if output.prompt is not None:
            return output.prompt
        return "".join(map(self.llm.tokenizer.text_of, output.prompt_token_ids))

    def _logprobs(self, scored: Sequence[TokenLogprob], places: Places) -> Document:
        """Write log-probabilities, and where the tokens' texts begin."""
        tokenizer = self.llm.tokenizer
        if self.is_chat:
            return chat_logprobs(tokenizer, scored)
        return completion_logprobs(tokenizer, scored, places)

    def _echoed(
        self, output: RequestOutput, scored: Sequence[TokenLogprob], answer: Document
    ) -> Document:
        """Put the prompt's log-probabilities before the answer's; the first token has none."""
        tokenizer, token = self.llm.tokenizer, output.prompt_token_ids[0]
        text, first = self._prompt_text(output), tokenizer.text_of(token)
        places = Places(tokenizer)
        if text.startswith(first):  # else it is a BOS token that the text does not have
            places.next(token)
        made = self._logprobs(scored, places)
        before = {"tokens": first, "token_logprobs": None, "top_logprobs": None, "text_offset": 0}
        answer["text_offset"] = [len(text) + at for at in answer["text_offset"]]
        return {name: [before[name], *made[name], *values] for name, values in answer.items()}


def _shown(run: SequenceState, scored: Sequence[TokenLogprob]) -> Sequence[TokenLogprob]:
    """Leave out the token that ended an answer, which is not part of its text."""
    seq, stops = run.seq, run.stops
    is_token = seq.finish_reason is FinishReason.STOP and not isinstance(stops.stop_reason, str)
    return scored[:-1] if is_token and not seq.params.include_stop_str_in_output else scored


def _joined(steps: Sequence[StreamEvent]) -> Iterator[StreamEvent]:
    """Join what came together into one event for each completion."""
    by_completion: dict[int, list[StreamEvent]] = {}
    for step in steps:
        by_completion.setdefault(step.completion, []).append(step)
    return map(_join, by_completion.values())


def _join(parts: list[StreamEvent]) -> StreamEvent:
    if len(parts) == 1:
        return parts[0]
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
