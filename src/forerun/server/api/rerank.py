"""Documents by their relevance to a query: `/v1/rerank` as Jina, Cohere and llama-server have it, TEI's `/rerank`.

A causal reranker (Qwen3-Reranker) is asked whether a document answers the query; its score is the probability of
"yes" against "no" as the next token. A server with `--embeddings` compares vectors instead, unless the model's name
says that it is a reranker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter
from starlette.responses import Response

from forerun.core.errors import RequestError
from forerun.engine import vectors
from forerun.engine.vectors import Vectors, normalized
from forerun.server.api.embeddings import check_texts, pooling_of, read_states
from forerun.server.bodies import JsonRequest, JsonRoute
from forerun.server.errors import invalid, must_be
from forerun.server.http import JsonResponse
from forerun.server.models import FromBody
from forerun.server.openapi import answers
from forerun.server.schema import RequestBody
from forerun.server.service import Service
from forerun.server.writer import Document
from forerun.text.prompt import Encoded, end_texts
from forerun.text.reranker import INSTRUCTION, Reranker, is_reranker

router = APIRouter(route_class=JsonRoute)


class RerankRequest(RequestBody):
    """A query, and the documents to order by it."""

    query: str
    documents: list[str | dict[str, Any]] | None = None
    """Texts, or objects with a `text`."""
    texts: list[str] | None = None
    """The same in TEI's form, which is answered with a list."""
    top_n: int | None = None
    """Only so many results."""
    return_documents: bool = False
    """Add the texts."""
    priority: int | None = None
    """As of embeddings."""
    instruction: str = INSTRUCTION
    """What makes a document relevant, for a causal reranker."""

    def check(self) -> None:
        """Check the documents too. Raises ApiError."""
        self.given()

    def given(self) -> list[str]:
        """Return the texts of the documents. Raises ApiError."""
        given = self.texts if self.documents is None else self.documents
        texts = [one.get("text") if isinstance(one, Mapping) else one for one in given or ()]
        if not texts or not all(isinstance(one, str) and one for one in texts):
            raise must_be("documents", 'a list of texts or {"text": TEXT}, none empty', given)
        if self.top_n is not None and self.top_n < 1:
            raise must_be("top_n", "a whole number from 1", self.top_n)
        check_texts(len(texts), "documents")
        return [str(one) for one in texts]


@router.post("/v1/rerank", responses=answers())
@router.post("/rerank", include_in_schema=False)
@router.post("/v1/reranking", include_in_schema=False)
@router.post("/reranking", include_in_schema=False)
@router.post("/v2/rerank", include_in_schema=False)
async def rerank(service: FromBody, request: JsonRequest, body: RerankRequest) -> Response:
    """Order documents by their relevance to a query."""
    name, texts = service.name(body.model), body.given()
    is_causal = not service.config.embeddings or is_reranker(service.llm().path)
    score = _by_answer if is_causal else _by_vectors
    scores, num_tokens = await score(service, request, body, texts)
    order = np.argsort(-scores, kind="stable")[: body.top_n].tolist()
    field = "relevance_score" if body.texts is None else "score"
    results: list[Document] = [{"index": i, field: float(scores[i])} for i in order]
    if body.return_documents:
        for one in results:
            one["document"] = {"text": texts[one["index"]]}
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    document = {"object": "list", "model": name, "results": results, "usage": usage}
    return await JsonResponse.written(lambda: document if body.texts is None else results)


async def _by_answer(
    service: Service, request: JsonRequest, body: RerankRequest, texts: Sequence[str]
) -> tuple[Vectors, int]:
    """Score by the next token after the question. Raises ApiError for a model without such tokens."""
    llm, template = service.llm(), service.template
    try:
        reranker = Reranker.of(llm.tokenizer, template)
    except RequestError as error:
        raise invalid(f"{error}, or start it with --embeddings", "model") from None

    def prompt(document: str) -> str:
        return reranker.prompt(body.query, document, body.instruction, service.template_kwargs)

    prompts = await service.aside(request, service.render(lambda: [*map(prompt, texts)]))

    def encode(number: int) -> Encoded:
        return service.read_text(prompts[number], "documents", bos=False)

    params = vectors.params("last", body.priority)
    states, num_tokens = await read_states(
        service, request, encode, len(texts), params, "documents"
    )

    def judged() -> Vectors:
        found = []
        for start in range(0, len(states), vectors.AT_ONCE):
            rows = np.concatenate(states[start : start + vectors.AT_ONCE])
            with llm.loop.lock():  # released in between: the head reads the whole vocabulary
                found.append(reranker.scores(llm.model.head(rows)))
        return np.concatenate(found)

    return await asyncio.to_thread(judged), num_tokens


async def _by_vectors(
    service: Service, request: JsonRequest, body: RerankRequest, texts: Sequence[str]
) -> tuple[Vectors, int]:
    """Score by the cosine of the angle between a document's vector and the query's."""
    pooling: Literal["mean", "last"] = "mean" if pooling_of(service) == "mean" else "last"

    given = (body.query, *texts)

    def encode(number: int) -> Encoded:
        encoded = [service.read_text(given[number], "documents")]
        return end_texts(encoded, service.llm().tokenizer)[0]

    params = vectors.params(pooling, body.priority)
    states, num_tokens = await read_states(
        service, request, encode, len(texts) + 1, params, "documents"
    )

    def compared() -> Vectors:
        query, *others = (normalized(rows)[0] for rows in states)
        return np.stack(others) @ query

    return await asyncio.to_thread(compared), num_tokens
