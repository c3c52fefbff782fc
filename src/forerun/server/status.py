"""Routes about the server: whether it answers, what it serves and counts, what each slot does."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.responses import PlainTextResponse, Response

import forerun
from forerun.engine.metrics import Gauge
from forerun.llm import LLM
from forerun.server.api.llama_server import settings
from forerun.server.api.ollama_models import listed
from forerun.server.errors import ApiError, loading, of_status, unsupported
from forerun.server.http import JsonResponse
from forerun.server.metrics import ENGINE_RUNNING, renamed
from forerun.server.models import AllModels, FromQuery, ServedModels
from forerun.server.openapi import answers
from forerun.server.service import Service
from forerun.server.writer import Document

router, open_router = APIRouter(), APIRouter()
"""Open routes need no key."""

_CAPS = (
    *("supports_tools", "supports_tool_calls", "supports_parallel_tool_calls"),
    *("supports_system_role", "supports_string_content", "supports_object_arguments"),
)
"""What llama-server says of a template. Here any has it: what it has no place for is written in another way."""


@open_router.get("/v1/health", include_in_schema=False)
@open_router.get("/health", responses=answers())
async def health(served: AllModels) -> Response:
    """Answer 200 when requests are answered, 503 while the first model loads, 500 where an engine has failed."""
    _check_ready(served)
    if served.failed:
        what = f"the engine of {', '.join(served.failed)} has failed, see the server's log"
        raise of_status(500, f"{what}: start the server again")
    return JsonResponse({"status": "ok"})


@router.get("/version", responses=answers())
async def version() -> Response:
    """Tell which forerun this is."""
    return JsonResponse({"version": forerun.__version__})


@router.get("/v1/models", responses=answers())
@router.get("/models", include_in_schema=False)
async def models(served: AllModels) -> Response:
    """List what is served."""
    _check_ready(served)
    data = [_model(served, service, name) for service in served.services for name in service.names]
    return JsonResponse({"object": "list", "data": data, "models": listed(served)})


@router.get("/v1/models/{name:path}", responses=answers())
async def model(name: str, served: AllModels) -> Response:
    """Show one of the served names."""
    service = served.named(name)
    shown = service.name(name)
    _check_ready(served)
    return JsonResponse(_model(served, service, shown))


def _model(served: ServedModels, service: Service, name: str) -> dict[str, object]:
    max_len = served.max_len(service)
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "forerun",
        "max_model_len": max_len,
        "drafter": service.drafter,
        "meta": {"n_ctx": max_len},
        "status": {"value": service.state},
    }


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(served: AllModels) -> Response:
    """Write counts and histograms for Prometheus."""
    _check_ready(served)
    loaded = {one.names[0]: one.llm() for one in served.services if one.is_loaded}
    counts = {name: await asyncio.to_thread(llm.get_metrics) for name, llm in loaded.items()}
    kind = "text/plain; version=0.0.4; charset=utf-8"
    for name, found in counts.items():
        found.append(Gauge(ENGINE_RUNNING, {}, float(name not in served.failed)))
    page = renamed(served.metrics.page(counts), served.config.metrics_prefix)
    return Response(page, headers={"content-type": kind})


def _check_ready(served: ServedModels) -> None:
    if not served.is_ready:
        raise loading()


@router.get(
    "/props",
    responses=answers(),
)
async def props(service: FromQuery) -> Response:
    """Show what the server runs with."""
    llm = service.llm()
    tokenizer, params = llm.tokenizer, service.defaults(max_tokens=service.most_tokens)
    eos_ids = sorted(tokenizer.eos_ids)
    return JsonResponse(
        {
            "default_generation_settings": {
                "id": 0,
                "n_ctx": llm.max_len,
                "speculative": llm.drafter_spec.name != "none",
                "is_processing": False,
                "params": settings(params, eos_ids, params.seed),
            },
            "total_slots": service.num_slots,
            "model_alias": service.names[0],
            "model_path": llm.path.name,
            "modalities": {"vision": False, "audio": False},
            "endpoint_slots": service.config.slots,
            "endpoint_props": False,
            "endpoint_metrics": True,
            "chat_template": tokenizer.chat_template or "",
            "chat_template_caps": dict.fromkeys(_CAPS, tokenizer.chat_template is not None),
            "bos_token": tokenizer.text_of(tokenizer.bos_id),
            "eos_token": tokenizer.text_of(tokenizer.eos_id),
            "build_info": f"forerun-{forerun.__version__}",
            "is_sleeping": False,
        }
    )


@router.get("/slots", responses=answers())
async def slots(service: FromQuery, fail_on_no_slot: str = "") -> Response:
    """Show what each place for a sequence does; with `?fail_on_no_slot=1` 503 if none is free."""
    if not service.config.slots:
        raise unsupported("/slots is disabled: start the server with --slots")
    documents = await asyncio.to_thread(_slots, service.llm())
    if fail_on_no_slot and all(one["is_processing"] for one in documents):
        raise ApiError(503, "no slot available", type="unavailable_error")
    return JsonResponse(documents)


def _slots(llm: LLM) -> list[Document]:
    is_drafting = llm.drafter_spec.name != "none"
    slots: list[Document] = [
        {
            "id": slot,
            "n_ctx": llm.max_len,
            "speculative": is_drafting,
            "is_processing": False,
            "id_task": -1,
            "next_token": [{"has_next_token": False, "n_remain": -1, "n_decoded": 0}],
        }
        for slot in range(llm.engine.cache.num_slots)
    ]
    with llm.loop.lock():
        engine = llm.engine
        for seq in engine.scheduler.running:
            run = engine.sequences[seq.id]
            next_token = {
                "has_next_token": True,
                "has_new_line": "\n" in run.text,
                "n_remain": run.stops.tokens_left,
                "n_decoded": len(seq.generated),
            }
            num_read = engine.num_read(seq) or 0
            slots[seq.slot] |= {
                "is_processing": True,
                "id_task": seq.id,
                "n_prompt_tokens": seq.num_prompt,
                "n_prompt_tokens_processed": max(num_read - seq.num_reused, 0),
                "n_prompt_tokens_cache": seq.num_reused,
                "next_token": [next_token],
            }
    return slots
