"""llama-server's own form of a completion: `/completion`, `/completions`, and `/infill` (`infill.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from forerun.server import prompts
from forerun.server.config import DEFAULT_MAX_TOKENS
from forerun.server.errors import ApiError
from forerun.server.http import EventStream, answer, body_nbytes, watched
from forerun.server.native_answers import NativeWriter
from forerun.server.native_schema import NativeRequest
from forerun.server.schema import StreamOptions
from forerun.server.service import Service
from forerun.text.prompt import Encoded


async def completion(service: Service, request: Request) -> Response:
    """Continue a text, in llama-server's form."""
    body, typed = await service.read(request, NativeRequest)
    given = prompts.split(body.prompt, "prompt")

    def encode() -> list[Encoded]:
        return [prompts.encode(one, service.read_text, "prompt") for one in given]

    encoded = await service.encode(encode, body_nbytes(request))
    is_one = len(given) == 1 and not _is_batch(body.prompt)
    return await answered(service, request, body, typed, encoded, is_one=is_one)


async def answered(
    service: Service,
    request: Request,
    body: NativeRequest,
    typed: dict[str, str],
    encoded: Sequence[Encoded],
    *,
    is_one: bool,
    ends: Sequence[int] = (),
) -> Response:
    """Run prompts and answer them: `is_one` as an object, several as a list. `ends` end an answer as well."""
    llm, name = service.llm(), service.name(body.model)
    if body.stream_options not in (None, StreamOptions()):
        message = "stream_options are for OpenAI's routes: leave them out"
        raise ApiError(400, message, param="stream_options")
    body.read_biases(llm.tokenizer)
    params = service.params(body, typed, service.defaults(max_tokens=DEFAULT_MAX_TOKENS))
    params.stop_token_ids = (*params.stop_token_ids, *ends)
    sent = {**typed, "prompt": "prompt", "form": body.form_field(typed)}
    running = await service.submit(encoded, params, stream=body.stream, sent=sent)
    request.state.entry.running = running
    writer = NativeWriter(
        request=running,
        model=name,
        llm=llm,
        body=body,
        observe=service.metrics.follow(running),
        is_one=is_one and params.n == 1,
    )
    if body.stream:
        return EventStream(writer.stream(), running.cancel)
    async with watched(request.receive, running.cancel):
        return answer(await writer.whole())


def _is_batch(prompt: Any) -> bool:
    """True for a list of prompts, also of one."""
    return isinstance(prompt, list) and not any(isinstance(one, int) for one in prompt)
