"""Requests of mixed lengths that come to servers at random times (Poisson), and what each waited for.

The same seed sends the same requests at the same times. Times depend on the machine; what does not, hardly: how many
longer prompts had their first token before a request that came when they were not read yet (`behind`), and what a
server counted itself (`counts`): passes and rows.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from urllib.request import urlopen

from forerun.server.client import Remote, RemoteError

COUNTED = (
    *("engine_steps_total", "engine_rows_total", "prompt_tokens_total", "generation_tokens_total"),
    *("num_preemptions_total", "recomputed_tokens_total"),
    *("n_decode_total", "tokens_predicted_total"),
)
"""Counters of forerun and of llama-server, which wants `--metrics`; without their prefixes."""
LINE_TOKENS = 18
"""About as many are in a line of `text`."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Requests of about one length, and how many of a hundred are such."""

    name: str
    share: int
    num_prompt: int
    num_new: int


KINDS = (
    Kind("question", 50, 30, 32),
    Kind("editor", 30, 400, 16),
    Kind("chat", 14, 1000, 64),
    Kind("agent", 6, 6000, 64),
)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request, and when it is sent."""

    at_s: float
    kind: Kind
    text: str

    def body(self, seed: int) -> dict[str, object]:
        """Write it for /chat/completions."""
        said = [{"role": "user", "content": self.text}]
        counted = {"stream_options": {"include_usage": True}, "cache_prompt": False}
        return {
            **{"messages": said, "max_tokens": self.kind.num_new, "temperature": 0, "seed": seed},
            **counted,
        }


@dataclass(slots=True)
class Waited:
    """What a request saw; seconds count from its arrival, and it arrived at `at_s`."""

    kind: str
    at_s: float
    num_prompt: int = 0
    num_new: int = 0
    first_s: float | None = None
    total_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    error: str = ""
    behind: int = 0


def arrivals(
    seed: int, count: int, per_s: float, kinds: Sequence[Kind] = KINDS
) -> Iterator[Arrival]:
    """Yield requests with exponential times between them; no two begin with the same words."""
    rng, at_s = random.Random(seed), 0.0
    for number in range(count):
        (kind,) = rng.choices(kinds, [each.share for each in kinds])
        yield Arrival(at_s, kind, _text(f"{seed}.{number}", kind, rng))
        at_s += rng.expovariate(per_s)


def _text(key: str, kind: Kind, rng: random.Random) -> str:
    num_lines = max(kind.num_prompt // LINE_TOKENS, 1)
    lines = (
        f"Item {i} costs {rng.randrange(97)} euros and weighs {rng.randrange(31)} kg."
        for i in range(num_lines)
    )
    return f"{key}: which of these is best, and why? " + " ".join(lines)


def send(remote: Remote, due: Iterable[Arrival], seed: int = 0) -> list[Waited]:
    """Send each request when it is due, whatever became of those before it."""
    planned = [*due]
    start_s = time.monotonic()

    def one(arrival: Arrival) -> Waited:
        time.sleep(max(0.0, start_s + arrival.at_s - time.monotonic()))
        return _follow(remote, arrival, seed)

    with ThreadPoolExecutor(max(1, len(planned))) as pool:
        found = [*pool.map(one, planned)]
    for waited in found:
        waited.behind = behind(waited, found)
    return found


def _follow(remote: Remote, arrival: Arrival, seed: int) -> Waited:
    waited, start_s = Waited(arrival.kind.name, arrival.at_s), time.monotonic()
    last_s = 0.0
    try:
        with remote.stream("/chat/completions", arrival.body(seed)) as stream:
            for chunk in stream:
                now_s = time.monotonic() - start_s
                if chunk.text and waited.first_s is None:
                    waited.first_s = now_s
                elif chunk.text:
                    waited.gaps_s.append(now_s - last_s)
                last_s = now_s if chunk.text else last_s
                waited.num_prompt = chunk.usage.get("prompt_tokens", waited.num_prompt)
                waited.num_new = chunk.usage.get("completion_tokens", waited.num_new)
    except RemoteError as error:
        waited.error = str(error)
    waited.total_s = time.monotonic() - start_s
    return waited


def behind(one: Waited, others: Iterable[Waited]) -> int:
    """Count the longer prompts that were not read when it came, and had their first token before it.

    >>> long, short = Waited("a", 0.0, 6000, first_s=9.0), Waited("q", 1.0, 30, first_s=0.5)
    >>> behind(short, [long, short]), behind(Waited("q", 1.0, 30, first_s=8.5), [long])
    (0, 1)
    """
    if one.first_s is None:
        return 0
    return sum(
        other.first_s is not None
        and other.num_prompt > one.num_prompt
        and other.at_s < one.at_s < other.at_s + other.first_s < one.at_s + one.first_s
        for other in others
    )


def counts(remote: Remote) -> dict[str, float]:
    """Read what a server has counted so far, of all its models; nothing of one that does not say."""
    try:
        with urlopen(remote.url.removesuffix("/v1") + "/metrics", timeout=10) as answer:
            return read_counts(answer.read().decode())
    except OSError:
        return {}


def read_counts(page: str) -> dict[str, float]:
    r"""Add up the counters of a page of Prometheus.

    >>> read_counts('forerun:engine_steps_total{model_name="a"} 3.0\nllamacpp:n_decode_total 5\n')
    {'engine_steps_total': 3.0, 'n_decode_total': 5.0}
    """
    found: dict[str, float] = {}
    for name, value in re.findall(r"^\w+:(\w+)(?:\{.*\})? (\S+)$", page, re.MULTILINE):
        if name in COUNTED:
            found[name] = found.get(name, 0.0) + float(value)
    return found


def measure(
    servers: Mapping[str, Remote],
    seeds: Iterable[int],
    count: int,
    per_s: float,
    write: Callable[[str], object],
) -> None:
    """Send the load of each seed to each server in turn; write a line of JSON for each, and a summary."""
    for seed in seeds:
        for name, remote in servers.items():
            before = counts(remote)
            found = send(remote, arrivals(seed, count, per_s), seed)
            after = counts(remote)
            new = {key: value - before.get(key, 0.0) for key, value in after.items()}
            row = {"server": name, "seed": seed, "per_s": per_s, "counts": new}
            write(json.dumps(row | {"requests": [asdict(one) for one in found]}))
            for line in summary(name, found, new):
                print(line, flush=True)


def summary(name: str, found: Sequence[Waited], new: Mapping[str, float]) -> Iterator[str]:
    """Write what each kind waited for, and what the server counted."""
    yield f"{name}: {', '.join(f'{key} {value:.0f}' for key, value in new.items())}"
    for kind in dict.fromkeys(one.kind for one in found):
        own = [one for one in found if one.kind == kind]
        firsts = [one.first_s for one in own if one.first_s is not None] or [float("nan")]
        gaps = [gap for one in own for gap in one.gaps_s] or [float("nan")]
        yield (
            f"  {kind}: {len(own)}, first token {median(firsts):.2f} s (most {max(firsts):.2f}), "
            f"gap {median(gaps):.3f} s (most {max(gaps):.2f}), behind longer prompts {sum(one.behind for one in own)}, "
            f"without an answer {sum(one.first_s is None for one in own)}"
        )


def draw(results: Path, picture: Path) -> None:
    """Draw the seconds to the first token over the tokens of the prompt, a dot a request, in a colour a server."""
    import matplotlib.pyplot as plt

    from forerun.lab.bench.plots.style import STYLE, looks

    rows = [json.loads(line) for line in results.open(encoding="utf-8")]
    names = list(dict.fromkeys(row["server"] for row in rows))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7, 3.8))
        for name, look in zip(names, looks(["llama" in name for name in names]), strict=True):
            every = [one for row in rows if row["server"] == name for one in row["requests"]]
            read = [one for one in every if one["first_s"] is not None]
            tokens, firsts = ([one[key] for one in read] for key in ("num_prompt", "first_s"))
            axes.plot(tokens, firsts, ".", color=look["color"], label=name)
        axes.set(xscale="log", yscale="log", xlabel="prompt tokens", ylabel="s to the first token")
        axes.legend()
        figure.savefig(picture, metadata={"Date": None})
