"""Which replica holds the beginning of a prompt: hashes of its blocks, and a table of where each was last answered.

A request goes to the replica that holds most of its prompt, unless that has too much to do already: no replica may
have more than `slack` times its share of the running requests (consistent hashing with bounded loads, Mirrokni et al.
2016). What no replica holds goes where the hash of its first block points (rendezvous hashing), so that gateways
agree without messages. A session keeps its replica whatever its load. Nothing here knows Ray.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import math
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

BLOCK = 256
"""Characters of a block: of English, some 60 tokens."""
MAX_BLOCKS = 256
"""Blocks of a prompt that are looked at, from its beginning."""
SLACK = 1.25
"""Times its share of the running requests that a replica may have."""
CAPACITY = 1 << 16
"""Blocks and sessions that are remembered, each."""
NAMED = 4
"""Replicas that are named for a request: when all of them refuse, the question is asked again."""
_BEFORE = ("model", "tools", "system", "instructions")
"""Fields that stand before the prompt in what the model reads, or decide on which model does."""
_PROMPT = ("messages", "input", "prompt", "input_prefix", "content")


@dataclass(slots=True)
class Route:
    """What is known of a request for its way."""

    blocks: tuple[int, ...] = ()
    """Hashes of its prompt's blocks, each of all up to it."""
    session: str = ""
    """What its client calls the conversation; empty for none."""
    avoid: tuple[str, ...] = ()
    """Replicas that were lost while they worked on it."""
    replica: str | None = field(default=None, compare=False)
    """The replica that the router chose."""
    is_over: bool = field(default=False, compare=False)
    """Whether its answer is complete; the gateway sets it before the client or Ray can know."""


def route_of(document: Mapping[str, Any], session: str = "") -> Route:
    """Make the route of a request's body; `session` is its header's, before the body's `prompt_cache_key`."""
    own = document.get("prompt_cache_key")
    return Route(blocks_of(document), session or (own if isinstance(own, str) else ""))


def blocks_of(document: Mapping[str, Any]) -> tuple[int, ...]:
    """Hash the prompt of a body, block by block: equal beginnings have equal hashes, and nothing else has."""
    text, room = list[str](), BLOCK * MAX_BLOCKS
    for part in _parts(document):
        text.append(part[:room])
        room -= len(text[-1])
        if not room:
            break
    whole, seen, hashes = "".join(text), hashlib.blake2b(digest_size=8), list[int]()
    for start in range(0, len(whole) - BLOCK + 1, BLOCK):
        seen.update(whole[start : start + BLOCK].encode("utf-8", "surrogatepass"))
        hashes.append(int.from_bytes(seen.digest(), "little"))
    return tuple(hashes)


def _parts(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a body's prompt as text that only grows at its end when a conversation goes on."""
    for name in (*_BEFORE, *_PROMPT):
        value = document.get(name)
        if not value:
            continue
        for one in value if isinstance(value, list) else (value,):
            yield one if isinstance(one, str) else json.dumps(one, ensure_ascii=False)
        if name in _BEFORE:
            yield "\0"


class PrefixTable:
    """Remembers which replicas have read which blocks and sessions, those used last."""

    def __init__(self, capacity: int = CAPACITY, slack: float = SLACK) -> None:
        self._capacity, self._slack = capacity, slack
        self._holders: OrderedDict[int, set[str]] = OrderedDict()
        self._sessions: OrderedDict[str, str] = OrderedDict()

    def order(self, route: Route, loads: Mapping[str, int]) -> list[str]:
        """Order the best replicas for a request, `NAMED` at most; `loads` are the requests that each has now.

        Those to avoid come last, then those above the bound; there is a replica below it in any case.
        """
        bound = math.ceil(self._slack * (sum(loads.values()) + 1) / max(len(loads), 1))
        own, depths = self._sessions.get(route.session), self._depths(route, loads)
        key = _key(route)

        def rank(name: str) -> tuple[object, ...]:
            hold = 0 if key is None else -_weight(key, name)
            is_full = loads[name] >= bound
            depth = depths.get(name, 0)
            # without a match the hash decides, with one the load among those that hold as much
            load = loads[name] if depth or is_full or key is None else 0
            return name in route.avoid, name != own, is_full, -depth, load, hold

        return heapq.nsmallest(NAMED, loads, key=rank)

    def note(self, route: Route, name: str) -> None:
        """Remember where a request has gone."""
        for block in route.blocks:
            self._holders.setdefault(block, set()).add(name)
            self._holders.move_to_end(block)
        while len(self._holders) > self._capacity:
            self._holders.popitem(last=False)
        if route.session:
            self._sessions[route.session] = name
            self._sessions.move_to_end(route.session)
            if len(self._sessions) > self._capacity:
                self._sessions.popitem(last=False)

    def keep(self, names: Collection[str]) -> None:
        """Forget what replicas held that are gone."""
        alive = {*names}
        for block, holders in [*self._holders.items()]:
            holders &= alive
            if not holders:
                del self._holders[block]
        for session in [one for one, name in self._sessions.items() if name not in alive]:
            del self._sessions[session]

    def _depths(self, route: Route, names: Collection[str]) -> dict[str, int]:
        """Count the blocks of the prompt's beginning that each replica holds."""
        depths: dict[str, int] = {}
        for depth, block in enumerate(route.blocks, 1):
            holders = self._holders.get(block)
            if not holders:
                break
            depths |= {name: depth for name in holders if depths.get(name, 0) == depth - 1}
        return {name: depth for name, depth in depths.items() if name in names}


def _key(route: Route) -> int | None:
    """Hash what decides where a request goes of which no replica holds a part."""
    if route.session:
        return _digest(route.session)
    return route.blocks[0] if route.blocks else None


def _digest(text: str) -> int:
    data = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _weight(key: int, name: str) -> int:
    """Weigh a replica for a key: the highest of all is where the key belongs (Thaler and Ravishankar 1998)."""
    return _digest(f"{key} {name}")


def random_order(names: Sequence[str], number: int) -> list[str]:
    """Order replicas by a number, as if no one knew what they hold: what routing by prefix is measured against."""
    return sorted(names, key=lambda name: _weight(number, name))
