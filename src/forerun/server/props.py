"""llama-server's routes about the server itself: what it runs with, what each place does, what a prompt would be."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

import forerun
from forerun.llm import LLM
from forerun.server.answers import Document
from forerun.server.errors import ApiError
from forerun.server.generation import rendered
from forerun.server.http import answer, body_nbytes
from forerun.server.native_answers import settings
from forerun.server.schema import ChatRequest
from forerun.server.service import Service
from forerun.server.texts import check_counted


async def props(service: Service, request: Request) -> Response:
    """What the server runs with."""
    llm = service.llm()
    tokenizer, params = llm.tokenizer, service.defaults(max_tokens=None)
    eos_ids = sorted(tokenizer.eos_ids)
    return answer(
        {
            "default_generation_settings": {
                "id": 0,
                "n_ctx": llm.max_len,
                "speculative": llm.drafter_spec.name != "none",
                "is_processing": False,
                "params": settings(params, eos_ids, params.seed),
            },
            "total_slots": llm.config.max_num_seqs,
            "model_alias": service.names[0],
            "model_path": llm.path.name,
            "modalities": {"vision": False, "audio": False},
            "endpoint_slots": service.config.slots,
            "endpoint_props": False,
            "endpoint_metrics": True,
            "chat_template": tokenizer.chat_template or "",
            "bos_token": tokenizer.text_of(tokenizer.bos_id),
            "eos_token": tokenizer.text_of(tokenizer.eos_id),
            "build_info": f"forerun-{forerun.__version__}",
            "is_sleeping": False,
        }
    )


async def slots(service: Service, request: Request) -> Response:
    """What each place for a sequence does; with `?fail_on_no_slot=1` 503 if none is free."""
    if not service.config.slots:
        raise ApiError(
            501,
            "this server does not answer /slots: start it with --slots",
            type="not_supported_error",
        )
    found = await asyncio.to_thread(_slots, service.llm())
    is_free = any(not one["is_processing"] for one in found)
    if request.query_params.get("fail_on_no_slot") and not is_free:
        raise ApiError(503, "no slot available", type="unavailable_error")
    return answer(found)


def _slots(llm: LLM) -> list[Document]:
    is_drafting = llm.drafter_spec.name != "none"
    found: list[Document] = [
        {
            "id": place,
            "n_ctx": llm.max_len,
            "speculative": is_drafting,
            "is_processing": False,
            "id_task": -1,
            "next_token": [{"has_next_token": False, "n_remain": -1, "n_decoded": 0}],
        }
        for place in range(llm.engine.cache.num_slots)
    ]
    with llm.loop.turns():
        engine = llm.engine
        for seq in engine.scheduler.running:
            run = engine.sequences[seq.id]
            next_token = {
                "has_next_token": True,
                "has_new_line": "\n" in run.text,
                "n_remain": run.stops.tokens_left,
                "n_decoded": len(seq.generated),
            }
            own = {"is_processing": True, "id_task": seq.id, "next_token": [next_token]}
            found[seq.slot] |= own
    return found


async def apply_template(service: Service, request: Request) -> Response:
    """The text that a conversation becomes."""
    body, _ = await service.read(request, ChatRequest)
    service.name(body.model)
    text = await service.encode(lambda: rendered(service, body), body_nbytes(request))
    return answer({"prompt": text})


async def input_tokens(service: Service, request: Request) -> Response:
    """How many tokens a conversation has."""
    body, _ = await service.read(request, ChatRequest)
    service.name(body.model)

    def count() -> int:
        text = rendered(service, body)
        check_counted(text, "messages")
        return len(service.llm().tokenizer.encode(text, bos=False))

    num_tokens = await service.encode(count, body_nbytes(request))
    return answer({"object": "response.input_tokens", "input_tokens": num_tokens})
