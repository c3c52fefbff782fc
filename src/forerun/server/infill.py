"""Filling text in: llama-server's `/infill`, and `suffix` of OpenAI's completions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from forerun.server.filling import filled, tokens_of
from forerun.server.http import body_nbytes
from forerun.server.native import answered
from forerun.server.native_schema import InfillRequest
from forerun.server.service import Service
from forerun.text.prompt import Encoded


async def infill(service: Service, request: Request) -> Response:
    """Fill the hole between `input_prefix` with `prompt` and `input_suffix`."""
    body, typed = await service.read(request, InfillRequest)
    tokens = tokens_of(service, "/infill")
    files = [(one.filename, one.text) for one in body.input_extra]
    before, after = body.input_prefix + body.prompt, body.input_suffix

    def encode() -> list[Encoded]:
        return [filled(service, tokens, before, after, ("input_prefix", "input_suffix"), files)]

    prompts = await service.encode(encode, body_nbytes(request))
    return await answered(service, request, body, typed, prompts, is_one=True, ends=tokens.ends)
