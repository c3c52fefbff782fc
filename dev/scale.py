"""Simulates a service of many replicas: requests a second, what they cost, and what becomes the limit.

    python -m dev.scale                 # the table of docs/scale-out.md

A replica is a server whose speed depends on how many sequences run: a step of n of them takes a + b n, which two
measured speeds give (one client and four). Prompts are read at a speed of their own, as far as they are not held
already. Clients hold conversations, one turn after the other without a pause, and the router is the gateway's own
(`PrefixTable`). A gateway spends a fixed time of its core on each request and on each part of a stream. Time is in
seconds. `dev/tests/test_scale.py` holds it to what was measured.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass, field

from forerun.server.ray.prefix import PrefixTable, Route


@dataclass(frozen=True)
class Load:
    """What is asked: conversations whose turns share their beginning."""

    new_tokens: int = 64
    prompt_tokens: int = 120
    """A turn adds so many to the conversation, the answer besides."""
    shared_tokens: int = 0
    """All conversations begin with these: every replica holds them."""
    turns: tuple[int, int] = (2, 5)
    """Of a conversation: at least and at most, all equally likely."""
    by_prefix: bool = True

    def prompt(self, turn: int) -> int:
        """Return the tokens of a turn's prompt, counted from 0."""
        return self.shared_tokens + turn * self.new_tokens + (turn + 1) * self.prompt_tokens


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
    def of_speeds(
        cls, one: float, four: float, prompt_tok_s: float, new: int = 64, prompt: int = 61
    ) -> Replica:
        """Fit tokens a second of one client and of four, whose prompts have so many tokens that are not held."""
        reading = prompt / prompt_tok_s
        alone = 1 / one - reading / new
        slope = (4 * new / four / (reading / alone + new) - alone) / 3
        return cls(max(alone - slope, 0.0), slope, 1 / prompt_tok_s)

    def slower(self, times: float) -> Replica:
        """Return one that takes `times` as long for everything: beside others on the same cores."""
        return Replica(self.step_s * times, self.each_s * times, self.prompt_s * times, self.places)

    def token_s(self, running: int) -> float:
        """Seconds between two tokens of each of so many sequences."""
        return self.step_s + self.each_s * running


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
class Conversation:
    """What a client says, and which replicas hold how much of it."""

    turns: int
    blocks: tuple[int, ...]
    """Hashes, one a turn."""
    turn: int = 0
    held: dict[int, int] = field(default_factory=dict)


@dataclass
class Place:
    """A replica at work."""

    running: dict[int, float] = field(default_factory=dict)
    """Work that is left of each client's turn, in tokens."""
    queue: list[tuple[int, float]] = field(default_factory=list)
    now_s: float = 0.0
    ends_s: float = math.inf
    """When the next answer is complete."""


@dataclass(frozen=True)
class Found:
    """What a simulation has shown."""

    requests_s: float
    reused: float
    """Share of the prompt tokens that the replica held."""


class Service:
    """Replicas, and clients that hold conversations with them."""

    def __init__(self, replica: Replica, load: Load, num: int, clients: int) -> None:
        self._replica, self._load, self._num = replica, load, num
        self._rng, self._table = random.Random(1), PrefixTable()
        # beyond some, each has the load of each; where a turn was read is known of all
        self._places = [Place() for _ in range(min(num, SIMULATED))]
        self._loads = {f"r{number}": 0 for number in range(len(self._places))}
        self._talks = [self._new() for _ in range(clients)]
        self._where = [0] * clients
        self._events: list[tuple[float, int]] = []
        self._asked = self._held = 0

    def run(self, num_turns: int) -> Found:
        """Answer so many turns, after a third as many that are not counted."""
        done, start_s, now_s = 0, 0.0, 0.0
        for client in range(len(self._talks)):
            self._send(client, 0.0)
        while done < num_turns:
            now_s, index = heapq.heappop(self._events)
            if now_s != self._places[index].ends_s:  # another turn began or ended since
                continue
            for client in self._ended(index, now_s):
                done += 1
                if done == num_turns // 3:
                    start_s, self._asked, self._held = now_s, 0, 0
                self._answer(client)
                self._send(client, now_s)
        return Found((done - num_turns // 3) / (now_s - start_s), self._held / self._asked)

    def _new(self) -> Conversation:
        turns = self._rng.randint(*self._load.turns)
        return Conversation(turns, tuple(self._rng.getrandbits(60) for _ in range(turns)))

    def _answer(self, client: int) -> None:
        """End a client's turn: its replica holds what was said."""
        talk = self._talks[client]
        talk.held[self._where[client]] = self._load.prompt(talk.turn) + self._load.new_tokens
        talk.turn += 1
        if talk.turn == talk.turns:
            self._talks[client] = self._new()

    def _send(self, client: int, now_s: float) -> None:
        """Let a client ask."""
        talk, load, replica = self._talks[client], self._load, self._replica
        place = self._route(talk)
        self._where[client] = place
        prompt = load.prompt(talk.turn)
        held = talk.held.get(place, load.shared_tokens)
        self._asked, self._held = self._asked + prompt, self._held + held
        index = place % len(self._places)
        self._loads[f"r{index}"] += 1
        work = (prompt - held) * replica.prompt_s / replica.token_s(1) + load.new_tokens
        self._advance(index, now_s)
        self._places[index].queue.append((client, work))
        self._admit(index)

    def _route(self, talk: Conversation) -> int:
        if not self._load.by_prefix:
            return self._rng.randrange(self._num)
        route = Route(talk.blocks[: talk.turn + 1])
        name = self._table.order(route, self._loads)[0]
        self._table.note(route, name)
        return int(name[1:])

    def _ended(self, index: int, now_s: float) -> list[int]:
        """Take off a replica whose answers are complete."""
        self._advance(index, now_s)
        place = self._places[index]
        ended = [client for client, left in place.running.items() if left < 1e-6]
        for client in ended:
            del place.running[client]
        self._loads[f"r{index}"] -= len(ended)
        self._admit(index)
        return ended

    def _admit(self, index: int) -> None:
        """Start what waits, and note when the next answer is complete."""
        place, replica = self._places[index], self._replica
        while place.queue and len(place.running) < replica.places:
            client, work = place.queue.pop(0)
            place.running[client] = work
        if place.running:
            left_s = min(place.running.values()) * replica.token_s(len(place.running))
            place.ends_s = place.now_s + left_s
            heapq.heappush(self._events, (place.ends_s, index))

    def _advance(self, index: int, now_s: float) -> None:
        """Take off what was done since the last time."""
        place = self._places[index]
        if place.running:
            tokens = (now_s - place.now_s) / self._replica.token_s(len(place.running))
            place.running = {one: left - tokens for one, left in place.running.items()}
        place.now_s = now_s


def service(replica: Replica, load: Load, num: int, gateway: Gateway) -> dict[str, float]:
    """Work out a service at full load: requests a second, gateways, share of prompts reused."""
    simulated = min(num, SIMULATED)
    found = Service(replica, load, num, 2 * replica.places * simulated).run(500 * simulated)
    rate = found.requests_s * num / simulated
    return {
        "requests_s": rate,
        "reused": found.reused,
        "gateways": math.ceil(rate / (BUSY * gateway.limit(num))),
        "million_tokens_h": rate * load.new_tokens * 3600 / 1e6,
    }


SIMULATED = 10
"""Replicas that are simulated one by one."""
BUSY = 0.7
"""Share of its core that a gateway may use."""
PRICE = 0.04
"""Dollars an hour of one core with 4 GB: an assumption."""
MODELS = {
    # one replica of one thread, as the log has it; prompts at 1,000 tokens a second
    "SmolLM2-135M, 1 core": (1, Replica.of_speeds(337, 508, 1000)),
    # 35.5 ms a row, passes of 4 and 8 rows 1.06 and 1.43 of one, drafting 1.6x
    "1.5B Q4_K_M, 2 cores": (2, Replica.of_speeds(45, 106, 157, prompt=0)),
    # 4.2 GB at 35 GB/s, passes of 4 and 8 rows 1.05 and 1.10 of one, drafting 1.6x
    "7B Q4_K_M, 2 cores": (2, Replica.of_speeds(13, 32, 60, prompt=0)),
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
