"""Vectors of texts: OpenAI's `/v1/embeddings`, llama-server's `/embedding` and `/embeddings`.

They are the states that the model's head reads, of a text's last token or the mean of all. A sequence that is read for
its states runs through the engine as any other, so it is batched, waits and is cancelled as they are.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter
from starlette.responses import Response

from forerun.core.params import SamplingParams
from forerun.engine import vectors
from forerun.engine.vectors import Vectors
from forerun.server.api.llama_server_requests import split_prompts
from forerun.server.async_request import AsyncRequest
from forerun.server.bodies import JsonRequest, JsonRoute
from forerun.server.config import MAX_TEXTS
from forerun.server.errors import invalid, must_be, unsupported
from forerun.server.http import RowsResponse, while_connected
from forerun.server.models import FromBody
from forerun.server.openapi import answers
from forerun.server.schema import RequestBody
from forerun.server.service import Service
from forerun.system.opened import read_json
from forerun.text.prompt import Encoded
from forerun.weights.gguf_header import read_header

router = APIRouter(route_class=JsonRoute)
Pooling = Literal["last", "mean", "none"]
_MEAN = 1
"""Of llama.cpp's kinds of pooling."""
_MOST_NORM = 32
SLICE = 64
"""Of them that are handed to the engine at once: others come in between."""


class EmbeddingRequest(RequestBody):
    """Texts of which vectors are wanted."""

    input: Any = None
    """A text, token ids, or a list of either."""
    content: Any = None
    """The same, as llama-server's own route calls it."""
    encoding_format: str = "float"
    """`float`, or `base64`: the bytes of little-endian float32."""
    dimensions: int | None = None
    """Numbers of a vector: the first ones, for models whose vectors may be cut (Matryoshka)."""
    embd_normalize: int = 2
    """The p of the norm that vectors are divided by, 0: by the largest number, -1: by none."""
    truncate: bool | str = False
    """Cut texts that are longer than the context; else, and for NONE, they are refused."""
    priority: int | None = None
    """Of requests that wait, those with a lower number come first; left out: 1, behind what is answered."""


@router.post(
    "/v1/embeddings",
    responses=answers(),
)
async def embeddings(service: FromBody, request: JsonRequest, body: EmbeddingRequest) -> Response:
    """Compute vectors of texts, in OpenAI's form."""
    found, num_tokens = await vector_of_each(service, request, body)
    data = (
        {"object": "embedding", "index": i, "embedding": _encoded(row, body.encoding_format)}
        for i, row in enumerate(found)
    )
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    name = service.name(body.model)
    return RowsResponse({"object": "list", "data": data, "model": name, "usage": usage})


@router.post("/embedding", responses=answers())
@router.post("/embeddings", include_in_schema=False)
async def native_embeddings(
    service: FromBody, request: JsonRequest, body: EmbeddingRequest
) -> Response:
    """Compute vectors of texts, in llama-server's form: a list of vectors for each text."""
    found, _ = await vectors_of(service, request, body)
    return RowsResponse(
        {"index": i, "embedding": (_encoded(row, body.encoding_format) for row in rows)}
        for i, rows in enumerate(found)
    )


async def vector_of_each(
    service: Service, request: JsonRequest, body: EmbeddingRequest
) -> tuple[Iterator[Vectors], int]:
    """Compute one vector (D,) of each text, and count their tokens. Raises ApiError."""
    if pooling_of(service) == "none":
        path = request.url.path
        raise invalid(
            f"{path} returns one vector per text: start the server with --pooling last or mean",
            "input",
        )
    states, num_tokens = await vectors_of(service, request, body)
    return (rows[0] for rows in states), num_tokens


async def vectors_of(
    service: Service, request: JsonRequest, body: EmbeddingRequest
) -> tuple[Iterator[Vectors], int]:
    """Compute the vectors of each text, made one by one of its states, and count their tokens. Raises ApiError."""
    if not service.config.embeddings:
        raise unsupported("embeddings are disabled: start the server with --embeddings")
    field, given = _check(body, service)
    parts = split_prompts(given, field)

    def encode(number: int) -> Encoded:
        part = parts[number]
        if body.truncate not in (False, "NONE") and isinstance(text := part[0], str):
            part = [service.cut(text)]
        encoded = service.read_parts(part, field)
        if isinstance(parts[number][-1], str):
            encoded.token_ids.extend(service.llm().tokenizer.suffix_ids)
        if not encoded.token_ids:
            raise invalid(f"{field} {number} has no tokens: give some text", field)
        return encoded

    pooling = pooling_of(service)
    check_texts(len(parts), field)
    params = vectors.params(pooling, body.priority)
    states, num_tokens = await read_states(service, request, encode, len(parts), params, field)

    def made(rows: Vectors) -> Vectors:
        rows = rows[:, : body.dimensions]
        is_normed = body.embd_normalize >= 0 and pooling != "none"
        return vectors.normalized(rows, body.embd_normalize) if is_normed else rows

    return map(made, states), num_tokens


def check_texts(count: int, field: str) -> None:
    """Raise ApiError for more texts than are read at once."""
    if count > MAX_TEXTS:
        raise invalid(
            f"{field} has {count} texts, the limit is {MAX_TEXTS}: send them in parts", field
        )


async def read_states(
    service: Service,
    request: JsonRequest,
    encode: Callable[[int], Encoded],
    count: int,
    params: SamplingParams,
    field: str,
) -> tuple[list[Vectors], int]:
    """Read so many texts, in slices; return the states of each that the head reads, and count their tokens.

    Raises ApiError, ClientDisconnect.
    """
    states, num_tokens, step = list[Vectors](), 0, min(SLICE, service.most_at_once)
    for start in range(0, count, step):
        numbers = range(start, min(start + step, count))
        read = partial(service.encode, partial(_all, encode, numbers), request.nbytes)
        running = await service.submit(request, read, len(numbers), params, field)
        request.state.entry.running = running
        states += await while_connected(request, _states(running))
        num_tokens += sum(handle.runs[0].seq.num_prompt for handle in running.handles)
    return states, num_tokens


async def _states(running: AsyncRequest) -> list[Vectors]:
    """Wait until the texts are read; their states."""
    async for _ in running.events():
        pass
    return await asyncio.to_thread(lambda: [handle.runs[0].states() for handle in running.handles])


def pooling_of(service: Service) -> Pooling:
    """Return which state of a text is its vector: as the server's option says, or the model's file."""
    given = service.config.pooling
    return _stored_pooling(service.llm().path) if given == "auto" else given


@cache
def _stored_pooling(path: Path) -> Pooling:
    """Read llama.cpp's and sentence-transformers' ways to say it."""
    if path.is_dir():
        settings = read_json(path / "1_Pooling" / "config.json")
        return "mean" if settings.get("pooling_mode_mean_tokens") is True else "last"
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        metadata = read_header(data).metadata
    kind = metadata.get(f"{metadata.get('general.architecture')}.pooling_type")
    return "mean" if kind == _MEAN else "last"


def _all(encode: Callable[[int], Encoded], numbers: Iterable[int]) -> list[Encoded]:
    return [*map(encode, numbers)]


def _check(body: EmbeddingRequest, service: Service) -> tuple[str, object]:
    """Find the field with the texts, and what it holds. Raises ApiError."""
    service.name(body.model)
    given = {"input": body.input, "content": body.content}
    fields = [name for name, value in given.items() if value is not None]
    if len(fields) != 1:
        raise invalid("give input, or content, which is llama-server's name", "input")
    if body.encoding_format not in ("float", "base64"):
        raise must_be("encoding_format", "float or base64", body.encoding_format)
    if not -1 <= body.embd_normalize <= _MOST_NORM:
        allowed = f"-1 (not at all), 0 (by the largest), or the p of a norm, 1 to {_MOST_NORM}"
        raise must_be("embd_normalize", allowed, body.embd_normalize)
    width = service.llm().model.config.hidden_size
    if body.dimensions is not None and not 1 <= body.dimensions <= width:
        raise must_be("dimensions", f"1 to {width}, which this model has", body.dimensions)
    return fields[0], given[fields[0]]


def _encoded(row: Vectors, encoding: str) -> object:
    is_text = encoding == "base64"
    return base64.b64encode(row.astype("<f4").tobytes()).decode() if is_text else row.tolist()
