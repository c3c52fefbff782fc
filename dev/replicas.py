"""Measures replicas on Ray: against the bare server, two against one, routing by prefix against random.

    python -m dev.replicas throughput     # bare server, one replica, two: in turn; --whole: no streams
    python -m dev.replicas routing        # conversations of two to five turns, by prefix and at random

Every process computes with one thread. The last line on stdout is one JSON document. The client is asyncio's own
sockets: on two cores a heavy client would take from what it measures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dev.machine import machine, said, spread
from forerun.core.config import EngineConfig
from forerun.server.config import ServerConfig

ROUNDS, NUM_NEW, SECONDS = 5, 64, 4.0


class Where(NamedTuple):
    """A server that listens."""

    port: int
    pid: int


@dataclass
class Load:
    """What came of a load."""

    seconds: float = 0.0
    tokens: int = 0
    requests: int = 0
    prompt: int = 0
    cached: int = 0
    first_ms: list[float] = field(default_factory=list)
    cpu_s: Counter[str] = field(default_factory=Counter)
    """Processor time: of this client, of what listens, of replicas and of the rest of Ray."""


async def ask(
    port: int, messages: list[dict], num_new: int, load: Load, streams: bool = True
) -> str:
    """Send a chat, count what comes, and return the answer."""
    body = {"messages": messages, "max_tokens": num_new, "temperature": 0, "ignore_eos": True}
    if streams:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    body = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    start = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + body)
    if not streams:
        answer = json.loads((await reader.read()).partition(b"\r\n\r\n")[2])
        writer.close()
        _count(load, answer["usage"])
        return answer["choices"][0]["message"]["content"]
    text, has_begun, usage = "", False, {}
    async for line in reader:
        if not line.startswith(b"data: {"):
            continue
        if not has_begun:
            has_begun = True
            load.first_ms.append((time.perf_counter() - start) * 1e3)
        event = json.loads(line[6:])
        assert "error" not in event, event
        usage = event.get("usage") or usage
        text += "".join(c["delta"].get("content") or "" for c in event["choices"])
    writer.close()
    _count(load, usage)
    return text


def _count(load: Load, usage: dict) -> None:
    load.tokens += usage["completion_tokens"]
    load.prompt += usage["prompt_tokens"]
    load.cached += usage["prompt_tokens_details"]["cached_tokens"]
    load.requests += 1


async def closed_loop(where: Where, clients: int, seed: int, streams: bool) -> Load:
    """Let so many clients ask one question after the other; what runs at the end is waited for and counted."""
    load, end = Load(), time.perf_counter() + SECONDS
    start, cpu_s = time.perf_counter(), processor_s(where.pid)

    async def client(number: int) -> None:
        rng = random.Random(seed * 1000 + number)
        while time.perf_counter() < end:
            ask_for = f"Write a story about these words: {said(rng, 60)}"
            messages = [{"role": "user", "content": ask_for}]
            await ask(where.port, messages, NUM_NEW, load, streams)

    await asyncio.gather(*map(client, range(clients)))
    load.seconds = time.perf_counter() - start
    load.cpu_s = processor_s(where.pid) - cpu_s
    return load


def processor_s(listener: int) -> Counter[str]:
    """Tell the processor time that each kind of process has taken."""
    found = Counter[str]()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes()
            parts = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            kind = {listener: "listener", os.getpid(): "client"}.get(int(folder.name), "")
            if not kind and (command.startswith(b"ray::") or b"/ray/" in command):
                kind = "replicas" if b"ServeReplica" in command else "ray"
            ticks = int(parts[11]) + int(parts[12])
            found[kind or "others"] += ticks / os.sysconf("SC_CLK_TCK")
    return found


async def conversations(port: int, number: int, at_once: int, seed: int) -> Load:
    """Hold conversations of two to five turns, so many at once."""
    load, places = Load(), asyncio.Semaphore(at_once)
    start = time.perf_counter()

    async def one(index: int) -> None:
        rng, messages = random.Random(seed * 1000 + index), list[dict]()
        async with places:
            for _ in range(rng.randint(2, 5)):
                messages.append({"role": "user", "content": f"Tell me more: {said(rng, 80)}"})
                answer = await ask(port, messages, 32, load)
                messages.append({"role": "assistant", "content": answer})

    await asyncio.gather(*map(one, range(number)))
    load.seconds = time.perf_counter() - start
    return load


@contextlib.contextmanager
def server(*command: str) -> Iterator[Where]:
    """Start one, and give where it is once it is ready."""
    with subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True) as process:
        port, told = 0, ""
        try:
            for line in process.stderr or ():
                told += line
                port = int(found[1]) if (found := re.search(r"http://\S+:(\d+)", line)) else port
                if line.startswith("ready"):
                    break
            assert port, told
            yield Where(port, process.pid)
        finally:
            process.terminate()
            process.wait(60)


@contextlib.contextmanager
def cluster(num_cpus: int) -> Iterator[None]:
    """Start a Ray for all that is measured, so that those that idle cost little."""
    os.environ["RAY_AUTH_MODE"] = "disabled"  # of nobody else's concern for these minutes
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    quiet = {"stdout": subprocess.DEVNULL, "check": True}
    own = ["--include-dashboard=false", "--disable-usage-stats", "--port=6399"]
    subprocess.run([*ray, "start", "--head", f"--num-cpus={num_cpus}", *own], **quiet)
    try:
        yield
    finally:
        subprocess.run([*ray, "stop"], **quiet)


def on_ray(num: int, *flags: str) -> contextlib.AbstractContextManager[Where]:
    """Start so many replicas."""
    return server("-m", "dev.replicas", "serve", "--num", str(num), *flags)


def row(name: str, loads: list[Load]) -> dict[str, object]:
    """Put rounds together; speeds are medians over them, with the range."""
    speeds = [one.tokens / one.seconds for one in loads]
    firsts = sorted(ms for one in loads for ms in one.first_ms)
    requests = sum(one.requests for one in loads)
    found = {
        "name": name,
        "tok_s": round(statistics.median(speeds), 1),
        "tok_s_range": f"{min(speeds):.1f}..{max(speeds):.1f}",
        "requests": requests,
        "reused": round(sum(o.cached for o in loads) / sum(o.prompt for o in loads), 3),
        "tok_s_best": round(max(speeds), 1),
    }
    cpu_s = sum((one.cpu_s for one in loads), Counter[str]())
    found["cpu_ms_a_request"] = {kind: round(s / requests * 1e3, 1) for kind, s in cpu_s.items()}
    if firsts:
        found["ttft_ms_p50"] = round(firsts[len(firsts) // 2], 1)
        found["ttft_ms_p99"] = round(firsts[int(len(firsts) * 0.99)], 1)
    return found


def paired(ours: list[Load], theirs: list[Load]) -> str:
    """Compare rounds of speeds, each with the one beside it, and the best with the best."""
    a, b = ([one.tokens / one.seconds for one in loads] for loads in (ours, theirs))
    best = max(a) / max(b)
    return f"{spread([x / y for x, y in zip(a, b)])}, best over best {best:.3f}"


async def side_by_side(one: Where, other: Where, seed: int, streams: bool) -> Load:
    """Ask two servers at once that know nothing of each other: what two cores are worth together."""
    a, b = await asyncio.gather(
        closed_loop(one, 4, seed + 10, streams), closed_loop(other, 4, seed + 20, streams)
    )
    a.seconds = max(a.seconds, b.seconds)
    a.tokens, a.requests = a.tokens + b.tokens, a.requests + b.requests
    a.prompt, a.cached = a.prompt + b.prompt, a.cached + b.cached
    a.first_ms += b.first_ms
    a.cpu_s["listener"] += b.cpu_s["listener"]
    a.cpu_s["others"] -= b.cpu_s["listener"]
    return a


def throughput(streams: bool) -> dict[str, object]:
    """Bare server, one replica, two replicas: in turn; a client or four for each core that computes."""
    bare, another = (
        server("-m", "forerun", "serve", "--threads", "1", "--port", "0") for _ in "ab"
    )
    loads, alone = dict[str, list[Load]](), machine()
    with cluster(3), bare as a, another as a2, on_ray(1) as b, on_ray(2) as c:
        plans = [("bare", a, 1), ("x1", b, 1), ("bare", a, 4), ("x1", b, 4), ("x2", c, 8)]
        for turn in range(-1, ROUNDS):  # the first one warms up
            for name, where, clients in plans:
                # the same words for all that are compared, others in each round: nobody finds old prompts
                seed = 100 * turn + (clients == 1)
                found = asyncio.run(closed_loop(where, clients, seed, streams))
                if turn >= 0:
                    loads.setdefault(f"{name}, {clients}", []).append(found)
            found = asyncio.run(side_by_side(a, a2, 100 * turn, streams))
            if turn >= 0:
                loads.setdefault("two bare, 4 each", []).append(found)
    return {
        "streams": streams,
        "rows": [row(*one) for one in loads.items()],
        "ray over bare, 1 client": paired(loads["x1, 1"], loads["bare, 1"]),
        "ray over bare, 4 clients": paired(loads["x1, 4"], loads["bare, 4"]),
        "two replicas over one": paired(loads["x2, 8"], loads["x1, 4"]),
        "two bare servers over one": paired(loads["two bare, 4 each"], loads["bare, 4"]),
        "two replicas over two bare": paired(loads["x2, 8"], loads["two bare, 4 each"]),
        "two processes over one": alone,
    }


def routing(num: int) -> dict[str, object]:
    """So many replicas by prefix and as many at random: in turn, the same conversations."""
    loads: dict[str, list[Load]] = {"prefix": [], "random": []}
    with cluster(2 * num), on_ray(num) as a, on_ray(num, "--random") as b:
        for turn in range(ROUNDS):
            for name, where in (("prefix", a), ("random", b)):
                loads[name].append(asyncio.run(conversations(where.port, 24, 6, turn)))
    rows = [row(*one) for one in loads.items()]
    return {"rows": rows, "reuse": round(rows[0]["reused"] / rows[1]["reused"], 2)}


def serve(num: int, by_prefix: bool) -> None:
    """Serve by replicas of one thread on the Ray that runs."""
    from forerun.server.ray.replica import ReplicaPlan
    from forerun.server.ray.run import serve_replicas

    config = ServerConfig(port=0, log_requests=False, drain_timeout=2)
    plan = ReplicaPlan((EngineConfig(program="server", threads=1),), config)
    say = partial(print, file=sys.stderr, flush=True)
    serve_replicas(plan, num, "127.0.0.1:6399", say, by_prefix=by_prefix)


def main() -> None:
    """Measure, or serve what is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("throughput", "routing", "serve"))
    parser.add_argument("--num", type=int, default=2, help="replicas, for routing")
    parser.add_argument("--whole", action="store_true", help="answers that do not stream")
    parser.add_argument("--random", action="store_true")
    given = parser.parse_args()
    if given.what == "serve":
        serve(given.num, not given.random)
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started ends too
    found = routing(given.num) if given.what == "routing" else throughput(not given.whole)
    load = os.getloadavg()[0]
    print(json.dumps({**found, "load_average": round(load, 1)}, indent=1))


if __name__ == "__main__":
    main()
