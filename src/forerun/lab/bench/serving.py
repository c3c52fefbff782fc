"""Loads run on systems in turn, and figures of the answers, named as in vLLM's benchmark; goodput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np

from forerun.cli import tables
from forerun.core.errors import ConfigError, check_least, unknown
from forerun.lab.bench.load import Load, Run, Served
from forerun.lab.bench.servers import Systems
from forerun.lab.output import Column, publish, show_table
from forerun.lab.provenance import provenance
from forerun.lab.store import Store

PERCENTILES = (50, 90, 99)
LATENCIES: Mapping[str, str] = {
    "ttft": "time to first token",
    "tpot": "time per output token, after the first",
    "itl": "inter-token latency",
    "e2el": "end-to-end latency",
}
GOODPUT = ("ttft", "tpot", "e2el")
"""Latencies that a request has one of, which goodput can bound."""

Figures = dict[str, float | int | None]


def bounds(given: str | None) -> dict[str, float]:
    """Read `ttft:200,tpot:20`: milliseconds by latency. Raises ConfigError."""
    limits = {}
    for part in filter(None, map(str.strip, (given or "").split(","))):
        name, _, number = part.partition(":")
        if name not in GOODPUT:
            raise ConfigError(unknown("latency of --goodput", name, GOODPUT))
        try:
            limits[name] = float(number)
        except ValueError:
            raise ConfigError(f"--goodput takes {name}:MILLISECONDS, got {part!r}") from None
        if not limits[name] > 0:
            raise ConfigError(f"--goodput {name} must be above 0, got {part!r}")
    return limits


def figures(
    served: Sequence[Served], seconds: float, goodput: Mapping[str, float] | None = None
) -> Figures:
    """Compute the figures of a load of so many seconds; latencies in ms, None where nothing was answered."""
    done = [one for one in served if one.error is None]
    num_input = sum(one.input_tokens for one in done)
    num_output = sum(one.output_tokens for one in done)
    row: Figures = {
        "completed": len(done),
        "failed": len(served) - len(done),
        "duration": round(seconds, 3),
        "total_input_tokens": num_input or None,  # llama_cpp.server does not tell
        "total_output_tokens": num_output,
        "request_throughput": _rate(len(done), seconds),
        "output_throughput": _rate(num_output, seconds),
        "total_token_throughput": _rate(num_input + num_output, seconds) if num_input else None,
        "request_goodput": None,
    }
    if goodput:
        num_good = sum(
            all(_ms(one, name) <= most for name, most in goodput.items()) for one in done
        )
        row["request_goodput"] = _rate(num_good, seconds)
    for name in LATENCIES:
        row |= _statistics(name, [ms for one in done for ms in _all_ms(one, name)])
    passes, drafted = sum(one.passes for one in done), sum(one.drafted for one in done)
    after_first = num_output - len(done)
    row["tau"] = round(after_first / passes, 3) if passes else None
    accepted = sum(one.accepted for one in done)
    row["acceptance_rate"] = round(accepted / drafted, 4) if drafted else None
    return row


def _statistics(name: str, values: Sequence[float]) -> Figures:
    """Mean, deviation and percentiles, with linear interpolation between the two nearest values."""
    keys = [f"{word}_{name}_ms" for word in ("mean", "std", *(f"p{p}" for p in PERCENTILES))]
    if not values:
        return dict.fromkeys(keys)
    numbers = [np.mean(values), np.std(values), *np.percentile(values, PERCENTILES)]
    return {key: round(float(number), 3) for key, number in zip(keys, numbers, strict=True)}


def _all_ms(one: Served, name: str) -> list[float]:
    if name == "itl":
        return [gap * 1e3 for gap in one.itl_s]
    return [_ms(one, name)] if name != "tpot" or one.tpot_s is not None else []


def _ms(one: Served, name: str) -> float:
    """A latency of one request; the time per output token of a single token is 0."""
    seconds = {"ttft": one.ttft_s, "tpot": one.tpot_s or 0.0, "e2el": one.e2e_s}[name]
    return seconds * 1e3


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 3) if seconds else 0.0


def run(
    name: str,
    systems: Systems,
    loads: Sequence[Load],
    origin: Mapping[str, object],
    *,
    rounds: int,
    out: Path | None,
    within: Mapping[str, float],
    as_json: bool,
) -> None:
    """Run loads of the same prompts on systems that serve the model `name`, and report. Exits 130 after Ctrl-C."""
    check_least("rounds", rounds, 1)
    load = loads[0]
    options = {
        **load.body,
        "request_rate": str(load.request_rate),
        "num_prompts": len(load.prompts),
    }
    options |= {"seed": load.seed, "ramp_up": load.ramp_up_s, **origin}
    store = Store(provenance(name, "as served", **options), out)
    is_whole = _measure(systems, loads, rounds, store)
    table = rows(store, within)
    publish(
        {"provenance": store.origin, "rows": table},
        lambda: show(store.origin, table, within),
        as_json=as_json,
        fails=any(row["failed"] for row in table),
    )
    if not is_whole:
        raise click.exceptions.Exit(130)


def _measure(systems: Systems, loads: Sequence[Load], rounds: int, store: Store) -> bool:
    """Run every load on every system, in turns; False if Ctrl-C ended it. What was answered is kept."""
    turns = [(name, load, number) for number in range(rounds) for load in loads for name in systems]
    num_asked = sum(len(load.prompts) for _, load, _ in turns)
    num_done = 0
    with tables.counter("measuring", num_asked) as show:
        for name, load, number in turns:
            key = f"{name} x{load.concurrency} {number}"
            if store.results.get(key, {}).get("is_whole"):
                num_done += len(load.prompts)
                continue
            served: list[Served] = []
            seconds = 0.0
            with suppress(KeyboardInterrupt), systems[name]() as remote:
                run = Run(load, remote)
                for one in run:
                    served.append(one)
                    seconds = run.seconds
                    show(num_done + len(served))
            num_done += len(served)
            is_whole = len(served) == len(load.prompts)
            if served:
                what = {"system": name, "concurrency": load.concurrency, "is_whole": is_whole}
                answers = [asdict(one) for one in served]
                store.add(key, {**what, "seconds": seconds, "served": answers})
            if not is_whole:
                return False
    return True


def rows(store: Store, within: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return a row for each system and number of requests at once: its rounds together."""
    by_system: dict[tuple[int, str], list[Any]] = {}
    for result in store.results.values():
        by_system.setdefault((result["concurrency"], result["system"]), []).append(result)  # type: ignore[arg-type]
    table = []
    for (level, system), results in by_system.items():
        served = [Served(**one) for result in results for one in result["served"]]
        seconds = sum(result["seconds"] for result in results)
        row = {"system": system, "max_concurrency": level}
        is_whole = all(result["is_whole"] for result in results)
        errors = dict.fromkeys(one.error for one in served if one.error)
        table.append(
            row
            | figures(served, seconds, within)
            | {"is_whole": is_whole, "error": next(iter(errors), None)}
        )
    return table


def show(
    origin: Mapping[str, object], rows: Sequence[Mapping[str, Any]], within: Mapping[str, float]
) -> None:
    """Print throughput, then latencies; --json has more of both."""
    if not rows:
        return
    out = tables.report()
    known = (
        ("model", "{}"),
        ("task", "{}"),
        ("num_prompts", "{} requests"),
        ("max_tokens", "{} tokens"),
    )
    rate = ("request_rate", "{} requests/s")
    out.print(" · ".join(text.format(origin.get(key)) for key, text in (*known, rate)) + "\n")
    who: dict[str, Column] = {"system": "system", "at once": "max_concurrency"}
    columns: dict[str, Column] = {
        **who,
        "done": "completed",
        "failed": "failed",
        "s": ("duration", 1),
        "req/s": ("request_throughput", 2),
        "tok/s": ("output_throughput", 1),
        "all tok/s": ("total_token_throughput", 1),
    }
    show_table(rows, columns | ({"goodput": ("request_goodput", 2)} if within else {}))
    words = ("mean", *(f"p{p}" for p in PERCENTILES))
    latencies = [
        {**row, "what": what, **{word: row[f"{word}_{name}_ms"] for word in words}}
        for name, what in LATENCIES.items()
        for row in rows
    ]
    out.print()
    show_table(latencies, {"ms": "what", **who, **{w: (w, 1) for w in words}}, num_left=2)
    for row in rows:
        if row["error"]:
            out.print(f"\n{row['system']}, {row['max_concurrency']} at once: {row['error']}")
        if not row["is_whole"]:
            out.print(f"\n{row['system']}, {row['max_concurrency']} at once: interrupted")
