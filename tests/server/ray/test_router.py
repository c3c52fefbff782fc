"""The router in Ray's place: which replica a request is offered first. Ray itself does not run."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from forerun.server.ray.prefix import BLOCK, Route, route_of

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray's own
]
REPLICAS = [SimpleNamespace(replica_id=SimpleNamespace(unique_id=name)) for name in "ab"]


@pytest.fixture
def ask():
    """Choose for a request, send it there, and say where; queues are empty, as far as Ray knows."""
    from forerun.server.ray.router import PrefixRouter

    class Router(PrefixRouter):
        replica_queue_len_cache = SimpleNamespace(get=lambda replica: None)

        def __init__(self) -> None:
            self.initialize_state()

    router, numbers = Router(), iter(range(99))

    def ask(route: Route) -> str:
        request = SimpleNamespace(
            metadata=SimpleNamespace(internal_request_id=str(next(numbers))),
            kwargs={"route": route},
            routing_context=SimpleNamespace(),
            future=SimpleNamespace(done=lambda: True),
        )
        ((first, *_), *_) = asyncio.run(router.choose_replicas(REPLICAS, request))
        router.on_request_routed(request, first.replica_id, None)
        return first.replica_id.unique_id

    return ask


@pytest.mark.parametrize("is_over", [True, False])
def test_a_turn_whose_answer_is_complete_does_not_fill_the_replica_for_the_next(ask, is_over):
    """Ray hears of the end later than the client, who may have asked again by then."""
    asked = []
    for turn in range(1, 7):
        route = route_of({"prompt": "river " * BLOCK * turn})
        asked.append(ask(route))
        route.is_over = is_over
    assert (len(set(asked)) == 1) is is_over
