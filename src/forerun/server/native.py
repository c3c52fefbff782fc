"""llama-server's own routes that answer: `/completion`, `/completions`, and `/infill`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from forerun.core.errors import short_repr
from forerun.server import prompts
from forerun.server.bodies import JsonRequest, JsonRoute
from forerun.server.config import DEFAULT_MAX_TOKENS
from forerun.server.dependencies import FromBody
from forerun.server.errors import ApiError
from forerun.server.native_writer import NativeWriter
from forerun.server.openapi import COUNT, TEXT, answers, list_of, object_of
from forerun.server.schema import SampledAnswer, StreamOptions
from forerun.server.service import Service
from forerun.text.prompt import Encoded
from forerun.text.tokenizer import Tokenizer

router = APIRouter(route_class=JsonRoute)
_ANSWER = object_of(content=TEXT, stop={"type": "boolean"}, tokens_evaluated=COUNT)
_ANSWERS = answers({"anyOf": [_ANSWER, list_of(_ANSWER)]}, streams=True)
NEVER = -100.0
"""The bias of a token that is ruled out: what a request may ask for, and what llama-server writes as `false`."""
_BIASES = "pairs of a token id or text and a number (false: never), or an object of them"


class NativeRequest(SampledAnswer):
    """A text to continue, in llama-server's form."""

    prompt: Any
    """A text, token ids, a list that mixes them, or a list of prompts."""
    logit_bias: dict[str, Any] | list[Any] | None = None
    """By token id or by text, whose tokens then get it each; `false` rules a token out."""
    n_probs: int | None = None
    """Log-probabilities of the tokens and of this many likeliest ones."""
    return_tokens: bool = False
    """Add the ids of the answer's tokens."""
    response_fields: list[str] | None = None
    """Only these fields of the answer; `a/b` is the field b of the object a."""

    def scores(self) -> dict[str, int | None]:
        """Read `n_probs`."""
        return {"logprobs": self.n_probs} if self.n_probs else {}

    def read_biases(self, tokenizer: Tokenizer) -> None:
        """Make `logit_bias` an object of token ids and numbers. Raises ApiError."""
        if self.logit_bias is None:
            return
        given = self.logit_bias
        pairs = [*given.items()] if isinstance(given, dict) else given
        found: dict[str, Any] = {}
        for pair in pairs:
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise _wrong(pair)
            token, value = pair
            value = NEVER if value is False else value
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise _wrong(pair)
            found |= dict.fromkeys(_ids(token, tokenizer), float(value))
        self.logit_bias = found


def _ids(token: object, tokenizer: Tokenizer) -> list[str]:
    """Find the ids that a token is, as it is written in a bias."""
    if isinstance(token, str) and not token.isdecimal():
        return [str(one) for one in tokenizer.encode(token, bos=False)]
    if isinstance(token, bool) or not isinstance(token, int | str):
        raise _wrong(token)
    return [str(token)]


def _wrong(given: object) -> ApiError:
    return ApiError(
        400, f"logit_bias must be {_BIASES}, got {short_repr(given)}", param="logit_bias"
    )


class ExtraFile(BaseModel):
    """A file that says something about the one that is filled in."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str
    filename: str = ""


class InfillRequest(NativeRequest):
    """A hole in a text to fill, in llama-server's form."""

    prompt: str = ""
    """What stands before the hole already, after `input_prefix`."""
    input_prefix: str = ""
    """The text before."""
    input_suffix: str = ""
    """The text after."""
    input_extra: list[ExtraFile] = Field(default_factory=list)
    """Other files."""


@router.post("/completion", responses=_ANSWERS)
@router.post("/completions", include_in_schema=False)
async def completion(service: FromBody, request: JsonRequest, body: NativeRequest) -> Response:
    """Continue a text, in llama-server's form."""
    given = prompts.split(body.prompt, "prompt")
    is_batch = isinstance(body.prompt, list) and not any(
        isinstance(one, int) for one in body.prompt
    )

    def encode() -> list[Encoded]:
        return [service.read_parts(one, "prompt") for one in given]

    is_one = len(given) == 1 and not is_batch
    return await _reply(service, request, body, encode, len(given), is_one=is_one)


@router.post("/infill", responses=_ANSWERS)
async def infill(service: FromBody, request: JsonRequest, body: InfillRequest) -> Response:
    """Fill the hole between `input_prefix` with `prompt` and `input_suffix`."""
    tokens = service.fill_in("/infill")
    files = [(one.filename, one.text) for one in body.input_extra]
    before = ("input_prefix", body.input_prefix + body.prompt)
    after = ("input_suffix", body.input_suffix)

    def encode() -> list[Encoded]:
        return [Encoded(service.read_hole(tokens, before, after, files))]

    return await _reply(service, request, body, encode, 1, is_one=True, ends=tokens.ends)


async def _reply(
    service: Service,
    request: JsonRequest,
    body: NativeRequest,
    encode: Callable[[], Sequence[Encoded]],
    num_prompts: int,
    *,
    is_one: bool,
    ends: Sequence[int] = (),
) -> Response:
    """Answer prompts: `is_one` as an object, several as a list. `ends` end an answer as well."""
    name = service.name(body.model)
    if body.stream_options not in (None, StreamOptions()):
        message = "stream_options are for OpenAI's routes: leave them out"
        raise ApiError(400, message, param="stream_options")
    body.read_biases(service.llm().tokenizer)
    params = service.params(body, max_tokens=DEFAULT_MAX_TOKENS)
    params.stop_token_ids = (*params.stop_token_ids, *ends)
    running = await service.submit(
        lambda: service.encode(encode, request.nbytes),
        num_prompts,
        params,
        field="prompt",
        form_field=body.form_field,
        stream=body.stream,
        with_progress=body.return_progress,
    )
    writer = NativeWriter(
        service,
        running,
        name,
        is_one=is_one and params.n == 1,
        is_stream=body.stream,
        with_tokens=body.return_tokens,
        with_timings=body.timings_per_token,
        wanted=body.response_fields or (),
    )
    return await writer.reply(request, stream=body.stream)
