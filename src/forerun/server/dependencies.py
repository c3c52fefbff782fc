"""What FastAPI hands to routes: all models, or the one that a request names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends
from starlette.requests import Request

from forerun.server.bodies import JsonRequest
from forerun.server.fleet import Fleet
from forerun.server.service import Service


async def _all(request: Request) -> Fleet:
    fleet: Fleet = request.app.state.fleet
    return fleet


async def _of_body(request: JsonRequest) -> AsyncIterator[Service]:
    fleet: Fleet = request.app.state.fleet
    async with fleet.leased(request, request.document.get("model")) as service:
        yield service


async def _of_query(request: Request, model: str | None = None) -> AsyncIterator[Service]:
    fleet: Fleet = request.app.state.fleet
    async with fleet.leased(request, model) as service:
        yield service


AllModels = Annotated[Fleet, Depends(_all)]
FromBody = Annotated[Service, Depends(_of_body)]
"""The model that the body names; it stays until the answer is sent."""
FromQuery = Annotated[Service, Depends(_of_query)]
