"""What is served, as Ollama, LM Studio and llama-server list it, describe it and unload it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import ClassVar

from fastapi import APIRouter
from starlette.responses import Response

from forerun.server.bodies import JsonRequest, JsonRoute
from forerun.server.http import JsonResponse
from forerun.server.models import AllModels, FromBody, ServedModels
from forerun.server.schema import RequestBody
from forerun.server.service import Service
from forerun.server.writer import Document

router = APIRouter(route_class=JsonRoute, include_in_schema=False)
lists = APIRouter(include_in_schema=False)
"""Routes without a body."""
VERSION = "0.13.5"
"""Of Ollama's API that these routes are like."""


class ShowRequest(RequestBody):
    """The name of a model."""

    name: str | None = None
    """Its older field."""
    verbose: bool = False
    """Say what the tokens are, too."""


@lists.get("/api/version")
async def version() -> Response:
    """Tell which Ollama this is like."""
    return JsonResponse({"version": VERSION})


@lists.get("/api/tags")
async def tags(served: AllModels) -> Response:
    """List what is served."""
    return JsonResponse({"models": listed(served)})


@lists.get("/api/ps")
async def loaded(served: AllModels) -> Response:
    """List the loaded models, and until when each stays without requests."""
    until = {name: served.clock.until(one) for one in served.services for name in one.names}
    found = listed(served, only_loaded=True)
    more = ({"expires_at": until[each["name"]], "size_vram": 0} for each in found)
    return JsonResponse({"models": [each | one for each, one in zip(found, more, strict=True)]})


@router.post("/api/show")
async def show(served: AllModels, request: JsonRequest, body: ShowRequest) -> Response:
    """Say what a model is and can do, also of one that is not loaded."""
    service = served.named(body.model or body.name)
    llm, max_len = service.worker.llm, served.max_len(service)
    config = None if llm is None else llm.model.config
    family = "unknown" if config is None else config.family
    facts: Document = {"general.architecture": family, f"{family}.context_length": max_len}
    if config is not None:
        facts[f"{family}.embedding_length"] = config.hidden_size
        facts[f"{family}.block_count"] = config.num_layers
    template = "" if llm is None else llm.tokenizer.chat_template or ""
    entry = _entry(service, service.names[0])
    document = entry | {
        "template": template,
        "model_info": facts,
        "parameters": "",
        "modelfile": "",
    }
    if not body.verbose or llm is None:
        return JsonResponse(document)
    tokenizer = llm.tokenizer

    def written() -> Response:
        ids = range(tokenizer.vocab_size)
        facts["tokenizer.ggml.tokens"] = [tokenizer.text_of(token) for token in ids]
        return JsonResponse(document)

    return await service.encode(written, tokenizer.vocab_size)


@lists.get("/api/v0/models")
async def lm_studio_models(served: AllModels) -> Response:
    """List what is served, as LM Studio does."""
    data = [
        {
            "id": name,
            "object": "model",
            "type": "llm",
            "state": "loaded" if service.is_loaded else "not-loaded",
            "max_context_length": served.max_len(service),
            "capabilities": ["tool_use"],
        }
        for service in served.services
        for name in service.names
    ]
    return JsonResponse({"object": "list", "data": data})


def listed(served: ServedModels, *, only_loaded: bool = False) -> list[Document]:
    """Describe the models that are served."""
    return [
        _entry(service, name)
        for service in served.services
        if service.is_loaded or not only_loaded
        for name in service.names
    ]


def _entry(service: Service, name: str) -> Document:
    """Describe a model as far as it is known without loading it."""
    llm, can = service.worker.llm, ["completion", "tools"]
    if llm is not None:
        can += ["insert"] * (llm.tokenizer.fill_in is not None)
        can += ["thinking"] * (service.form.thinking is not None or service.form.is_harmony)
    family = "unknown" if llm is None else llm.model.config.family
    return {
        "name": name,
        "model": name,
        "modified_at": timestamp(service.created),
        "size": 0 if llm is None else llm.model.nbytes(),
        "digest": "",
        "details": {
            "format": "gguf",
            "family": family,
            "families": [family],
            "parameter_size": "",  # not known, but Zed reads no list without both
            "quantization_level": "",
        },
        "capabilities": can + ["embedding"] * service.config.embeddings,
    }


class UnloadRequest(RequestBody):
    """The name of a model to unload."""

    only_unloads: ClassVar = True


@router.post("/models/unload")
async def unload(service: FromBody, request: JsonRequest, body: UnloadRequest) -> Response:
    """Unload a model, as llama-server does."""
    return JsonResponse({"success": await request.app.state.served.unload(service)})


def timestamp(seconds: float | None = None) -> str:
    """Write a time, by default now, as Ollama does."""
    now = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return now.isoformat().replace("+00:00", "Z")
