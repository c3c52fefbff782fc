"""llama-server's own routes that answer, `/completion`, `/completions` and `/infill`, and its form of an answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from forerun.core.params import LLAMA_SAMPLERS, SamplingParams
from forerun.core.types import Event, FinishReason, TokenLogprob
from forerun.engine.sequence import SequenceState
from forerun.llm import LLM
from forerun.server.api.llama_server_requests import InfillRequest, NativeRequest, split_prompts
from forerun.server.async_request import AsyncRequest, PromptProgress, StreamEvent
from forerun.server.bodies import JsonRequest, JsonRoute
from forerun.server.errors import invalid
from forerun.server.models import FromBody
from forerun.server.openapi import answers
from forerun.server.schema import StreamOptions
from forerun.server.service import Service
from forerun.server.writer import Document, Writer, prompt_progress
from forerun.text.prompt import Encoded
from forerun.text.tokenizer import Tokenizer

router = APIRouter(route_class=JsonRoute)
_ANSWERS = answers(streams=True)
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
"""Settings of llama-server that do not exist here, with the values that mean off."""


@router.post("/completion", responses=_ANSWERS)
@router.post("/completions", include_in_schema=False)
async def completion(service: FromBody, request: JsonRequest, body: NativeRequest) -> Response:
    """Continue a text, in llama-server's form."""
    given = split_prompts(body.prompt, "prompt")
    is_batch = isinstance(body.prompt, list) and not any(
        isinstance(one, int) for one in body.prompt
    )

    def encode() -> list[Encoded]:
        return [service.read_parts(one, "prompt") for one in given]

    is_one = len(given) == 1 and not is_batch
    return await _reply(service, request, body, encode, len(given), is_one=is_one)


@router.post("/infill", responses=_ANSWERS)
async def infill(service: FromBody, request: JsonRequest, body: InfillRequest) -> Response:
    """Fill the gap between `input_prefix` with `prompt` and `input_suffix`."""
    tokens = service.fill_in("/infill")
    files = [(one.filename, one.text) for one in body.input_extra]
    before = ("input_prefix", body.input_prefix + body.prompt)
    after = ("input_suffix", body.input_suffix)

    def encode() -> list[Encoded]:
        return [Encoded(service.read_infill(tokens, before, after, files))]

    return await _reply(service, request, body, encode, 1, is_one=True)


async def _reply(
    service: Service,
    request: JsonRequest,
    body: NativeRequest,
    encode: Callable[[], Sequence[Encoded]],
    num_prompts: int,
    *,
    is_one: bool,
) -> Response:
    """Answer prompts: `is_one` as an object, several as a list."""
    service.name(body.model)
    if body.stream_options not in (None, StreamOptions()):
        message = "stream_options are for OpenAI's routes: leave them out"
        raise invalid(message, "stream_options")
    body.read_biases(service.llm().tokenizer)
    params = service.params(body, max_tokens=None, samplers=LLAMA_SAMPLERS)
    read = partial(service.encode, encode, request.nbytes)
    running = await service.submit(request, read, num_prompts, params, "prompt", body)
    writer = NativeWriter(service, running, body, is_one=is_one and params.n == 1)
    return await writer.reply(request, stream=body.stream)


def settings(params: SamplingParams, eos_ids: list[int], seed: int | None) -> Document:
    """Write the parameters of a request under llama-server's names."""
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
        "samplers": [*params.samplers],
        **_OFF,
    }


class NativeWriter(Writer):
    """Write an answer as llama-server does: a chunk a token, and the figures at the end."""

    def __init__(
        self, service: Service, running: AsyncRequest, body: NativeRequest, *, is_one: bool
    ) -> None:
        """`is_one`: the answer is an object; else it is a list, also of one."""
        super().__init__(service, running, body.model)
        self.body, self.is_one = body, is_one
        self._counts: Counter[int] = Counter()
        """By completion: tokens that were sent."""

    def document(self) -> Document | list[Document]:
        """Write the whole answer."""
        timings = self.timings()
        documents = [
            self._only(self._final(i, run, run.text, timings))
            for i, run in enumerate(self.running.runs)
        ]
        return documents[0] if self.is_one else documents

    def chunks(self, events: Sequence[StreamEvent]) -> Iterator[Document]:
        """Write a chunk for each token, and the whole of a completion without its text where it ends."""
        timings: Document = {}  # of all that end together: to add them up takes as long as they are many
        for step in events:
            for text, tokens, scored in _by_token(step.event):
                if tokens:
                    yield self._only(self._chunk(step, text, tokens, scored))
            if step.event.finish_reason is not None:
                run = self.running.runs[step.completion]
                timings = timings or self.timings()
                yield self._only(self._final(step.completion, run, "", timings))

    def read(self, progress: PromptProgress) -> Iterator[Document]:
        """Write a chunk without text."""
        yield {
            "index": progress.completion,
            "content": "",
            "tokens": [],
            "stop": False,
            "id_slot": self.running.runs[progress.completion].seq.slot,
            "tokens_predicted": 0,
            "tokens_evaluated": progress.num_prompt,
            "prompt_progress": prompt_progress(progress),
        }

    def _chunk(
        self,
        step: StreamEvent,
        text: str,
        tokens: tuple[int, ...],
        scored: tuple[TokenLogprob, ...],
    ) -> Document:
        index = step.completion
        seq = self.running.runs[index].seq
        self._counts[index] += len(tokens)
        document: Document = {
            "index": index,
            "content": text,
            "tokens": [*tokens],
            "stop": False,
            "id_slot": seq.slot,
            "tokens_predicted": self._counts[index],
            "tokens_evaluated": seq.num_prompt,
        }
        if scored:
            document["completion_probabilities"] = self._probabilities(scored)
        if self.body.timings_per_token:
            document["timings"] = self.timings(step.time_s)
        return document

    def _final(self, index: int, run: SequenceState, text: str, timings: Document) -> Document:
        """Write the whole of a completion, or the last chunk of one whose text was sent."""
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
            "tokens_cached": seq.num_prompt + max(len(seq.generated) - 1, 0),
            "generation_settings": {
                **settings(seq.params, sorted(tokenizer.eos_ids), seq.seed),
                "stream": self.body.stream,
            },
            "prompt": tokenizer.decode(seq.tokens[: seq.num_prompt], skip_special=False),
            "has_new_line": "\n" in run.text,
            "truncated": _fills_context(run, self.llm),
            "stop_type": _stop_type(run),
            "stopping_word": run.stops.stop_reason if _stop_type(run) == "word" else "",
            "timings": timings,
        }
        if seq.params.logprobs is not None and not self.body.stream:
            document["completion_probabilities"] = self._probabilities(run.logprobs)
        return document

    def _only(self, document: Document) -> Document:
        """Keep the fields that were asked for, all if none were."""
        if not self.body.response_fields:
            return document
        chosen: Document = {}
        for path in self.body.response_fields:
            value: Any = document
            for part in path.split("/"):
                value = value.get(part) if isinstance(value, dict) else None
            if value is not None:
                chosen[path] = value
        return chosen

    def _probabilities(self, scored: Sequence[TokenLogprob]) -> list[Document]:
        return [_probability(one, self.llm.tokenizer) for one in scored]


def _by_token(event: Event) -> list[tuple[str, tuple[int, ...], tuple[TokenLogprob, ...]]]:
    """Split text, tokens and log-probabilities token by token; all together where a text is of several tokens."""
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
    """Tell whether the answer ended where the context does."""
    is_full = len(run.seq.tokens) >= llm.max_len
    return is_full and run.seq.finish_reason is FinishReason.LENGTH
