"""Simulates a service of many replicas: requests a second, what they cost, and what becomes the limit.

    python -m dev.scale                 # the table of docs/scale-out.md

A replica is a server whose speed depends on how many sequences run: a step of n of them takes a + b n, which two
measured speeds give (one client and four). Prompts are read at a speed of their own, as far as they are not held
already. A gateway spends a fixed time of its core on each request and on each part of a stream. Clients ask again as
soon as they are answered (a closed loop), or requests come at random (an open one). Time is in seconds.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass, replace

from forerun.server.ray.prefix import PrefixTable, Route


@dataclass(frozen=True)
class Replica:
    """How fast a replica is."""

    step_s: float
    """A token of one sequence takes this much, whatever else runs ..."""
    each_s: float
    """... and this much for each sequence that runs."""
    prompt_s: float
    """A prompt token that is not held."""
    places: int = 8

    @classmethod
    def of_speeds(cls, one: float, four: float, prompt_tok_s: float) -> Replica:
        """Fit tokens a second of one client, and of four together."""
        slope = (4 / four - 1 / one) / 3
        return cls(max(1 / one - slope, 0.0), slope, 1 / prompt_tok_s)

    def token_s(self, running: int) -> float:
        """Seconds between two tokens of each of so many sequences."""
        return self.step_s + self.each_s * running


@dataclass(frozen=True)
class Load:
    """What is asked: conversations whose turns share their beginning."""

    new_tokens: int = 64
    prompt_tokens: int = 120
    """A turn adds so many to the conversation, the answer besides."""
    turns: float = 3.5
    """Of a conversation, on average."""
    by_prefix: bool = True


@dataclass(frozen=True)
class Gateway:
    """What a gateway spends of its core on a request: as measured, and for each replica that it ranks."""

    request_s: float = 0.0075
    part_s: float = 0.0003
    replica_s: float = 1.2e-6
    parts: int = 16

    def limit(self, replicas: int) -> float:
        """Requests a second that one can hand on."""
        return 1 / (self.request_s + self.parts * self.part_s + replicas * self.replica_s)


@dataclass
class Place:
    """A replica at work."""

    running: dict[int, float]
    """Work that is left of each request, in tokens."""
    queue: list[tuple[int, float]]
    now_s: float = 0.0


def reused(load: Load, replicas: int) -> float:
    """Share of prompt tokens that a replica holds already: all earlier turns by prefix, else if it was there."""
    rng, found, asked = random.Random(0), 0.0, 0.0
    turn_tokens = load.prompt_tokens + load.new_tokens
    for _ in range(2000):
        turns = min(1 + int(rng.expovariate(1 / max(load.turns - 1, 1e-9))), 20)
        last: dict[int, int] = {}
        for turn in range(turns):
            place = 0 if load.by_prefix else rng.randrange(replicas)
            asked += turn * turn_tokens + load.prompt_tokens
            found += last.get(place, 0)
            last[place] = turn * turn_tokens + load.prompt_tokens
    return found / asked


def closed_loop(
    replica: Replica, load: Load, num: int, clients: int, held: float = 0.0, seconds: float = 150.0
) -> float:
    """Simulate clients that ask again at once; return requests a second. `held` is the share of prompts reused."""
    table, places = PrefixTable(), [Place({}, []) for _ in range(num)]
    names = [f"r{number}" for number in range(num)]
    loads, done, number, rng = dict.fromkeys(names, 0), 0, 0, random.Random(1)
    prompt_s = load.prompt_tokens * (1 - held) * replica.prompt_s
    events: list[tuple[float, int]] = []

    def send(now_s: float) -> None:
        nonlocal number
        index = names.index(table.order(Route((rng.getrandbits(60),)), loads)[0])
        loads[names[index]] += 1
        place = places[index]
        _advance(replica, place, now_s)
        place.queue.append((number, prompt_s / replica.token_s(1) + load.new_tokens))
        number += 1
        _admit(replica, place)
        heapq.heappush(events, (_next(replica, place), index))

    for _ in range(clients):
        send(0.0)
    while events:
        now_s, index = heapq.heappop(events)
        if now_s > seconds:
            break
        place = places[index]
        _advance(replica, place, now_s)
        ended = [one for one, left in place.running.items() if left < 1e-6]
        for one in ended:
            del place.running[one]
            loads[names[index]] -= 1
        _admit(replica, place)
        if place.running:
            heapq.heappush(events, (_next(replica, place), index))
        done += len(ended)
        for _ in ended:
            send(now_s)
    return done / seconds


def _admit(replica: Replica, place: Place) -> None:
    while place.queue and len(place.running) < replica.places:
        one, work = place.queue.pop(0)
        place.running[one] = work


def _advance(replica: Replica, place: Place, now_s: float) -> None:
    """Take off what was done since the last time."""
    if place.running:
        tokens = (now_s - place.now_s) / replica.token_s(len(place.running))
        place.running = {one: left - tokens for one, left in place.running.items()}
    place.now_s = now_s


def _next(replica: Replica, place: Place) -> float:
    """When the next request of a place ends."""
    return place.now_s + min(place.running.values()) * replica.token_s(len(place.running))


def service(replica: Replica, load: Load, num: int, gateway: Gateway) -> dict[str, float]:
    """Work out a service at full load: requests a second, gateways, share of prompts reused."""
    held = reused(load, num)
    # the context that a turn reads again where it is not held, in tokens of a prompt
    context = (load.turns - 1) / 2 * (load.prompt_tokens + load.new_tokens) + load.prompt_tokens
    whole = replace(load, prompt_tokens=round(context))
    simulated = min(num, 4)  # beyond some, each has the load of each
    rate = closed_loop(replica, whole, simulated, 2 * replica.places * simulated, held)
    rate *= num / simulated
    return {
        "requests_s": rate,
        "reused": held,
        "gateways": math.ceil(rate / (BUSY * gateway.limit(num))),
        "million_tokens_h": rate * load.new_tokens * 3600 / 1e6,
    }


BUSY = 0.7
"""Share of its core that a gateway may use."""
PRICE = 0.04
"""Dollars an hour of one core with 4 GB: an assumption."""
MODELS = {
    # one replica of one thread, as the log has it; prompts at 1,000 tokens a second
    "SmolLM2-135M, 1 core": (1, Replica.of_speeds(337, 508, 1000)),
    # 35.5 ms a row, passes of 4 and 8 rows 1.06 and 1.43 of one, drafting 1.6x
    "1.5B Q4_K_M, 2 cores": (2, Replica.of_speeds(45, 106, 157)),
    # 4.2 GB at 35 GB/s, passes of 4 and 8 rows 1.05 and 1.10 of one, drafting 1.6x
    "7B Q4_K_M, 2 cores": (2, Replica.of_speeds(13, 32, 60)),
}


def main() -> None:
    """Print the table of the documentation, as markdown."""
    gateway = Gateway()
    print(
        "| a replica | replicas | routing | requests/s | reused | gateways | $ / million tokens |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, (cores, replica) in MODELS.items():
        for num in (1, 10, 100, 1000):
            for by_prefix in (True, False)[: 1 + (num > 1)]:
                found = service(replica, Load(by_prefix=by_prefix), num, gateway)
                dollars = (num * cores + found["gateways"]) * PRICE / found["million_tokens_h"]
                way = "prefix" if by_prefix else "random"
                print(
                    f"| {name} | {num} | {way} | {found['requests_s']:.1f} | "
                    f"{found['reused']:.0%} | {found['gateways']:.0f} | {dollars:.2f} |"
                )


if __name__ == "__main__":
    main()
