"""Routes about the server as a whole: whether it answers, what it serves, what it counts."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

import forerun
from forerun.server.errors import loading
from forerun.server.fleet import Fleet
from forerun.server.http import answer
from forerun.server.service import Service


async def health(fleet: Fleet, request: Request) -> Response:
    """200 when requests are answered, 503 while the first model loads."""
    _check_ready(fleet)
    return answer({"status": "ok"})


async def version(fleet: Fleet, request: Request) -> Response:
    """Which forerun this is."""
    return answer({"version": forerun.__version__})


async def models(fleet: Fleet, request: Request) -> Response:
    """What is served."""
    _check_ready(fleet)
    data = [_model(service, name) for service in fleet.services for name in service.names]
    return answer({"object": "list", "data": data})


async def model(fleet: Fleet, request: Request) -> Response:
    """One of the served names."""
    asked = request.path_params["name"]
    service = fleet.named(asked)
    name = service.name(asked)
    _check_ready(fleet)
    return answer(_model(service, name))


def _model(service: Service, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "forerun",
        **service.facts,
        "status": {"value": service.state},
    }


async def metrics(fleet: Fleet, request: Request) -> Response:
    """Counts and histograms for Prometheus."""
    _check_ready(fleet)
    there = {one.names[0]: one.llm() for one in fleet.services if one.is_loaded}
    found = {name: await asyncio.to_thread(llm.get_metrics) for name, llm in there.items()}
    kind = "text/plain; version=0.0.4; charset=utf-8"
    return Response(fleet.metrics.page(found), headers={"content-type": kind})


def _check_ready(fleet: Fleet) -> None:
    if not fleet.is_ready:
        raise loading()
