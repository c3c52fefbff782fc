"""Writes answers in llama-server's own form."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from forerun.core.params import SamplingParams
from forerun.core.types import Event, FinishReason, TokenLogprob
from forerun.engine.sequence import SequenceState
from forerun.llm import LLM
from forerun.server.answers import Document, timings
from forerun.server.errors import of_stream
from forerun.server.http import to_json
from forerun.server.native_schema import NativeRequest
from forerun.server.worker import AsyncRequest, StreamEvent
from forerun.text.tokenizer import Tokenizer

SAMPLERS = ["penalties", "temperature", "top_k", "top_p", "min_p"]
"""The order in which a distribution is filtered (`decoding/processors.py`)."""
_OFF: Document = {
    "dynatemp_range": 0.0,
    "typical_p": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "dry_multiplier": 0.0,
    "mirostat": 0,
    "adaptive_target": -1.0,
    "adaptive_decay": 0.0,
    "n_keep": 0,
    "n_discard": 0,
    "post_sampling_probs": False,
    "backend_sampling": False,
    "lora": [],
}
"""What llama-server has and nobody can switch on here, at the values that mean off."""


def settings(params: SamplingParams, eos_ids: list[int], seed: int | None) -> Document:
    """The parameters of a request under llama-server's names."""
    biases: list[Document] = [
        {"token": token, "bias": value} for token, value in params.logit_bias.items()
    ]
    if params.ignore_eos:
        biases += [{"token": token, "bias": None} for token in eos_ids]
    most = -1 if params.max_tokens is None else params.max_tokens
    form = params.structured_outputs
    return {
        "n_predict": most,
        "max_tokens": most,
        "n": params.n,
        "seed": -1 if seed is None else seed,
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "repeat_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "ignore_eos": params.ignore_eos,
        "stop": [*params.stop],
        "logit_bias": biases,
        "n_probs": params.logprobs or 0,
        "grammar": "" if form is None or form.grammar is None else form.grammar,
        "samplers": SAMPLERS,
        **_OFF,
    }


@dataclass(slots=True, kw_only=True)
class NativeWriter:
    """One request's answer. `observe` is called with all that comes."""

    request: AsyncRequest
    model: str
    llm: LLM
    body: NativeRequest
    observe: Callable[[StreamEvent], object]
    is_one: bool
    """The answer is an object; else it is a list, also of one."""
    _end_s: float = 0.0
    _counts: dict[int, int] = field(default_factory=dict)
    """By completion: tokens that were sent."""

    async def whole(self) -> Document | list[Document]:
        """The answer, when it is complete. Raises what ended the request."""
        async for found in self.request.news():
            for news in found:
                self._take(news)
        wanted = self.body.response_fields
        documents = [_only(self._final(i, run.text), wanted) for i, run in enumerate(self._runs())]
        return documents[0] if self.is_one else documents

    async def stream(self) -> AsyncIterator[bytes]:
        """The events: a chunk a token, the figures at the end, or what went wrong."""
        try:
            async for found in self.request.news():
                for news in found:
                    self._take(news)
                if chunks := b"".join(chunk for news in found for chunk in self._chunks(news)):
                    yield chunks
        except Exception as error:
            yield _event(of_stream(error).document())

    def _take(self, news: StreamEvent) -> None:
        self.observe(news)
        self._end_s = news.time_s

    def _runs(self) -> list[SequenceState]:
        return [run for handle in self.request.handles for run in handle.runs]

    def _chunks(self, news: StreamEvent) -> list[bytes]:
        event, index = news.event, news.completion
        run = self._runs()[index]
        documents = [
            self._chunk(index, run, *part, news.time_s) for part in _by_token(event) if part[1]
        ]
        if event.finish_reason is not None:
            documents.append(self._final(index, ""))
        return [_event(_only(one, self.body.response_fields)) for one in documents]

    def _chunk(
        self,
        index: int,
        run: SequenceState,
        text: str,
        tokens: tuple[int, ...],
        scored: tuple[TokenLogprob, ...],
        time_s: float,
    ) -> Document:
        self._counts[index] = self._counts.get(index, 0) + len(tokens)
        document: Document = {
            "index": index,
            "content": text,
            "tokens": [*tokens],
            "stop": False,
            "id_slot": run.seq.slot,
            "tokens_predicted": self._counts[index],
            "tokens_evaluated": run.seq.num_prompt,
        }
        if scored:
            document["completion_probabilities"] = self._probabilities(scored)
        if self.body.timings_per_token:
            document["timings"] = self._timings(time_s)
        return document

    def _final(self, index: int, text: str) -> Document:
        """The whole of a completion, or the last chunk of one whose text was sent."""
        run = self._runs()[index]
        seq, tokenizer = run.seq, self.llm.tokenizer
        with_tokens = self.body.return_tokens and not self.body.stream
        document: Document = {
            "index": index,
            "content": text,
            "tokens": [*seq.generated] if with_tokens else [],
            "id_slot": seq.slot,
            "stop": True,
            "model": self.model,
            "tokens_predicted": len(seq.generated),
            "tokens_evaluated": seq.num_prompt,
            "tokens_cached": len(seq.tokens) - 1,
            "generation_settings": {
                **settings(seq.params, sorted(tokenizer.eos_ids), seq.seed),
                "stream": self.body.stream,
            },
            "prompt": tokenizer.decode(seq.tokens[: seq.num_prompt], skip_special=False),
            "has_new_line": "\n" in run.text,
            "truncated": _fills_context(run, self.llm),
            "stop_type": _stop_type(run),
            "stopping_word": run.stops.stop_reason if _stop_type(run) == "word" else "",
            "timings": self._timings(self._end_s),
        }
        if seq.params.logprobs is not None and not self.body.stream:
            document["completion_probabilities"] = self._probabilities(run.logprobs)
        return document

    def _timings(self, end_s: float) -> Document:
        return timings(self.request, end_s, self.llm.drafter_spec.name)

    def _probabilities(self, found: Any) -> list[Document]:
        return [_probability(one, self.llm.tokenizer) for one in found]


def _by_token(event: Event) -> list[tuple[str, tuple[int, ...], tuple[TokenLogprob, ...]]]:
    """Text, tokens and log-probabilities token by token; all together where a text is of several tokens."""
    scored, tokens = event.logprobs or (), event.token_ids
    if len(event.pieces) != len(tokens):
        return [(event.text, tokens, scored)]
    return [
        (piece.text, (token,), scored[i : i + 1])
        for i, (piece, token) in enumerate(zip(event.pieces, tokens, strict=True))
    ]


def _probability(one: TokenLogprob, tokenizer: Tokenizer) -> Document:
    def entry(token: int, value: float) -> Document:
        spelled = tokenizer.token_bytes(token) or b""
        return {
            "id": token,
            "token": tokenizer.text_of(token),
            "bytes": [*spelled],
            "logprob": value,
        }

    top = [entry(token, value) for token, value in one.top]
    return entry(one.token_id, one.logprob) | {"top_logprobs": top}


def _stop_type(run: SequenceState) -> str:
    match run.seq.finish_reason:
        case FinishReason.LENGTH:
            return "limit"
        case FinishReason.STOP:
            return "word" if isinstance(run.stops.stop_reason, str) else "eos"
        case _:
            return "none"


def _fills_context(run: SequenceState, llm: LLM) -> bool:
    """True if the answer ended where the context does."""
    is_full = len(run.seq.tokens) >= llm.max_len
    return is_full and run.seq.finish_reason is FinishReason.LENGTH


def _only(document: Document, wanted: list[str] | None) -> Document:
    """The fields that were asked for, all if none were."""
    if not wanted:
        return document
    found: Document = {}
    for path in wanted:
        value: Any = document
        for part in path.split("/"):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            found[path] = value
    return found


def _event(document: Document) -> bytes:
    return b"data: " + to_json(document) + b"\n\n"
