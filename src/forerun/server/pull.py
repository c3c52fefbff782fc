"""Ollama's `/api/pull`: a model of the hub comes to this disk where the operator lets clients fetch any."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from forerun.hub import pulling, shortnames
from forerun.hub.hugging_face import HubName
from forerun.server.api.ollama_models import ShowRequest
from forerun.server.bodies import JsonRequest, JsonRoute
from forerun.server.errors import ApiError, is_called, must_be
from forerun.server.http import LINES, EventStreamResponse, JsonResponse, to_json, while_connected
from forerun.server.models import AllModels, ServedModels

router = APIRouter(route_class=JsonRoute, include_in_schema=False)
MAX_NAME = 512
"""Letters of a name that is asked for: it becomes an argument of a process."""
SERVED = ({"status": "pulling manifest"}, {"status": "success"})


class PullRequest(ShowRequest):
    """The name of a model to have."""

    stream: bool = True


@router.post("/api/pull")
async def pull(served: AllModels, request: JsonRequest, body: PullRequest) -> Response:
    """Fetch a model of the hub, or say that it is served, as clients ask before they use it."""
    asked = body.model or body.name
    is_fetched = _is_fetched(served, asked)
    download = _Download(served, asked or "")
    if not body.stream:
        last = await while_connected(request, download.last()) if is_fetched else SERVED[-1]
        if "error" in last:
            raise ApiError(500, last["error"], "model", type="server_error")
        return JsonResponse(last)
    states = download.states() if is_fetched else _served()
    lines = (to_json(state) + b"\n" async for state in states)
    return EventStreamResponse(lines, download.stop, media_type=LINES)


def _is_fetched(served: ServedModels, asked: str | None) -> bool:
    """Tell what must be fetched from what is served. Raises ApiError for what may not be fetched, or is nowhere."""
    if asked is None or any(is_called(asked, service.names) for service in served.services):
        return False
    if len(asked) > MAX_NAME or not asked.isprintable():
        what = f"the name of a model, printable and of at most {MAX_NAME} letters"
        raise must_be("model", what, asked)
    may_fetch = served.config.allow_pull or served.config.api_key is not None
    # A short name such as llama3.2 is also what one model answers to.
    if HubName.parse(asked) is None and not (may_fetch and shortnames.find(asked)):
        served.named(asked).name(asked)  # one model answers to any name
        return False
    if not may_fetch:
        raise ApiError(
            403,
            "clients may not download models: start the server with --allow-pull or an API key (--api-key-file), "
            f"or run on its machine: forerun pull {asked}",
            "model",
            "pull_not_allowed",
        )
    return True


async def _served() -> AsyncIterator[dict[str, Any]]:
    for state in SERVED:
        yield state


class _Download:
    """A model that comes, one at a time, in a process of its own."""

    def __init__(self, served: ServedModels, asked: str) -> None:
        self._turn, self._asked = served.pulls, asked
        self._process: asyncio.subprocess.Process | None = None
        self._is_wanted = True

    def stop(self) -> None:
        """End it: no client waits for it. What has come is kept, and the rest is fetched another time."""
        self._is_wanted = False
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def last(self) -> dict[str, Any]:
        """Fetch it and return what came of it."""
        try:
            return [state async for state in self.states()][-1]
        finally:
            self.stop()

    async def states(self) -> AsyncIterator[dict[str, Any]]:
        """Fetch it and tell how far it is; the last one is of success or an error."""
        async with self._turn:
            if not self._is_wanted:
                return
            self._process = await _started(self._asked)
            assert self._process.stdout is not None
            state: dict[str, Any] = {}
            async for line in self._process.stdout:
                state = json.loads(line)
                if state.get("status") == "success":
                    here = f"it is on this disk: forerun serve {self._asked} serves it"
                    yield {"status": here}
                yield state
            await self._process.wait()
            if "error" not in state and state.get("status") != "success":
                yield {"error": f"the download of {self._asked} was ended"}


async def _started(asked: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *pulling.command(asked),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=pulling.environment(),
        start_new_session=True,  # Ctrl-C is for the server
    )
