"""Ray Serve's request router for replicas of forerun: requests meet the replica that holds their prompt's beginning.

It runs wherever a handle of the replicas is, in a gateway or in Ray's proxy, and knows only the requests of that place;
what others send shows in the lengths of queues that replicas tell.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from forerun.server.ray.prefix import SLACK, PrefixTable, Route, random_order


class PrefixRouter(RequestRouter):
    """Orders the replicas for each request by `PrefixTable`; the request's `route` says what is known of it."""

    def initialize_state(self, slack: float = SLACK, by_prefix: bool = True) -> None:
        """Take the options of the deployment; without `by_prefix` requests are spread at random."""
        self._table, self._by_prefix = PrefixTable(slack=slack), by_prefix
        self._loads: Counter[str] = Counter()
        self._places: dict[str, tuple[str, Route]] = {}
        """Where each running request is, and what is known of it, by Ray's id of it."""
        self._num_chosen = 0

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Forget replicas that are gone."""
        super().update_replicas(replicas)
        self._table.keep([one.replica_id.unique_id for one in replicas])

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Order the replicas, best first, each in a rank of its own: one that refuses is followed by the next."""
        by_name = {one.replica_id.unique_id: one for one in candidate_replicas}
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        route = _route(pending_request)
        if self._by_prefix:
            order = self._table.order(route, self._current(by_name))
        else:
            self._num_chosen += 1
            order = random_order([*by_name], self._num_chosen)
        self._place(pending_request, order[0])
        return [[by_name[name]] for name in order]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """Note where a request has gone."""
        name, route = replica_id.unique_id, _route(pending_request)
        self._place(pending_request, name)
        self._table.note(route, name)
        route.replica = name

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Note that a request has ended."""
        self._leave(internal_request_id)

    def _place(self, request: PendingRequest, name: str) -> None:
        """Count a request where it is to go, before it is there: many may be on their way at once."""
        number = request.metadata.internal_request_id
        self._leave(number)
        self._places[number] = name, _route(request)
        self._loads[name] += 1
        if not request.future.done():
            request.future.add_done_callback(
                lambda future: self._leave(number) if future.cancelled() else None
            )

    def _leave(self, number: str) -> None:
        name, _ = self._places.pop(number, (None, None))
        if name is not None:
            self._loads[name] -= 1
            if not self._loads[name]:
                del self._loads[name]

    def _current(self, by_name: dict[str, RunningReplica]) -> dict[str, int]:
        """Return the requests of each replica, as far as they are known.

        Those whose answers are complete do not count, though Ray does not know it yet: else the next turn of a
        conversation would often find its replica full of the turn before.
        """
        told = self.replica_queue_len_cache
        over = Counter(name for name, route in self._places.values() if route.is_over)
        return {
            name: max(self._loads[name], told.get(one.replica_id) or 0) - over[name]
            for name, one in by_name.items()
        }


def _route(request: PendingRequest) -> Route:
    """Find what the gateway knows; nothing for a call that came another way."""
    found = request.kwargs.get("route")
    return found if isinstance(found, Route) else Route()
