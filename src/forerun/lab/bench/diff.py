"""What changed between two runs of `forerun bench`: tokens, tokens a pass, and speed with an interval that holds.

Two runs are not made in turns, so their tokens a second differ by what else the machine does. Within a run, plain
decoding answers each group next to the drafter: compared are the speed-ups over it. The interval comes from drawing
groups anew, and of each group its rounds, in both runs (bootstrap). Where a drafter took the same passes for the same
tokens nothing can have become faster but the passes, which plain decoding shows: no gain is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.core.errors import ConfigError
from forerun.engine.stats import SpecStats
from forerun.lab.bench import measurement
from forerun.lab.bench.measurement import Measurement, Round
from forerun.lab.bench.run import PLAIN
from forerun.lab.bench.summary import INTERVAL, RESAMPLES

Row = dict[str, Any]
Groups = dict[str, list[Round]]
SETTINGS = (
    "model",
    "quant",
    "task",
    "max_tokens",
    "temperature",
    "batch",
    "threads",
    "cpu",
    "isa",
    "forerun",
    "commit",
)
"""Of a run's origin, those that may explain a change."""


def compare(first: Path, second: Path) -> dict[str, Any]:
    """Compare two files of `bench --out`. Raises ConfigError where they have no drafter or no prompts in common."""
    origins, runs = zip(*map(measurement.read, (first, second)), strict=True)
    one, other = (_groups(rounds) for rounds in runs)
    common = [name for name in one if name in other]
    if not common:
        raise ConfigError(
            f"{first} and {second} have no prompts in common: give the same --task and --limit"
        )
    rows = [_row(pair, one, other, common) for pair in _systems(*runs)]
    changed = {
        name: [origin.get(name) for origin in origins]
        for name in SETTINGS
        if origins[0].get(name) != origins[1].get(name)
    }
    return {
        "files": [str(first), str(second)],
        "groups": len(common),
        "changed": changed,
        "rows": rows,
    }


def _groups(rounds: Sequence[Round]) -> Groups:
    groups: Groups = {}
    for one in rounds:
        groups.setdefault(one.group, []).append(one)
    return groups


def _systems(first: Sequence[Round], second: Sequence[Round]) -> list[tuple[str, str]]:
    """Pair what both runs measured; else the only drafter of each. Raises ConfigError."""
    names = [
        [*dict.fromkeys(one.system for each in run for one in each.measurements)]
        for run in (first, second)
    ]
    both = [(name, name) for name in names[0] if name in names[1]]
    alone = [[name for name in each if name != PLAIN] for each in names]
    if [*zip(*both, strict=True)] in ([], [(PLAIN,), (PLAIN,)]) and [
        len(each) for each in alone
    ] == [1, 1]:
        both.append((alone[0][0], alone[1][0]))
    if not both:
        raise ConfigError(
            f"no drafter is in both: {', '.join(names[0])}, and {', '.join(names[1])}"
        )
    return both


def _row(pair: tuple[str, str], first: Groups, second: Groups, common: Sequence[str]) -> Row:
    """Compare one system over the groups in which both runs have it and plain decoding."""
    runs = [
        {name: _pairs(groups[name], system) for name in common}
        for system, groups in zip(pair, (first, second), strict=True)
    ]
    used = [name for name in common if all(run[name] for run in runs)]
    row: Row = {"drafter": pair[0], "other": pair[1], "groups": len(used)}
    if not used:
        return row | {"error": "not measured in both"}
    ours = [[run[name][0][0] for name in used] for run in runs]
    stats = [SpecStats.total(one.stats for one in each) for each in ours]
    same_tokens = [a.token_ids == b.token_ids for a, b in zip(*ours, strict=True)]
    same_passes = all(
        (a.stats.passes, a.stats.emitted) == (b.stats.passes, b.stats.emitted)
        for a, b in zip(*ours, strict=True)
    )
    arrays = [[_columns(run[name]) for name in used] for run in runs]
    row |= {
        "identical": sum(same_tokens),
        "tau": [round(one.tau, 4) for one in stats],
        "acceptance_rate": [round(one.acceptance_rate, 4) for one in stats],
        "tok_s": [round(_rate(each), 2) for each in arrays],
        "same_passes": same_passes,
    }
    if pair == (PLAIN, PLAIN):
        return row
    values = [round(_speedup(each), 4) for each in arrays]
    low, high = _interval(arrays)
    is_noise = same_passes or f"{row['tau'][0]:.2f}" == f"{row['tau'][1]:.2f}"
    gain = None if is_noise else round(values[1] / values[0], 4)
    interval = (None, None) if is_noise else (low, high)
    return row | {"speedup": values, "gain": gain, "gain_lo": interval[0], "gain_hi": interval[1]}


def _pairs(rounds: Sequence[Round], system: str) -> list[tuple[Measurement, Measurement]]:
    pairs = ((each.of(system), each.of(PLAIN)) for each in rounds)
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def _columns(pairs: Sequence[tuple[Measurement, Measurement]]) -> NDArray[np.float64]:
    """Return tokens and seconds of a system and of plain decoding (rounds, 4) of one group."""
    rows = [(a.decode_tokens, a.decode_s, b.decode_tokens, b.decode_s) for a, b in pairs]
    return np.array(rows, float)


def _rate(arrays: Sequence[NDArray[np.float64]]) -> float:
    tokens, seconds, *_ = np.sum([np.median(each, axis=0) for each in arrays], axis=0)
    return float(tokens / seconds) if seconds else 0.0


def _speedups(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the speed-ups of columns (n, 4), 1 where nothing was decoded."""
    tokens, seconds, plain_tokens, plain_s = columns.T
    plain = plain_tokens * seconds
    return np.divide(tokens * plain_s, plain, out=np.ones_like(plain), where=plain > 0)


def _speedup(arrays: Sequence[NDArray[np.float64]]) -> float:
    """Return the speed-up over all groups, each of which counts with the median of its rounds."""
    total = np.sum([np.median(each, axis=0) for each in arrays], axis=0)
    return float(_speedups(total[None])[0])


def _interval(runs: Sequence[Sequence[NDArray[np.float64]]]) -> tuple[float | None, float | None]:
    """Return the 95 % interval of the ratio of two runs' speed-ups; None for fewer than two groups."""
    num = len(runs[0])
    if num < 2:
        return None, None
    random, speedups = np.random.default_rng(0), []
    chosen = random.integers(num, size=(RESAMPLES, num))
    for arrays in runs:
        rounds = [random.integers(len(each), size=(RESAMPLES, len(each))) for each in arrays]
        medians = [
            np.median(each[drawn], axis=1) for each, drawn in zip(arrays, rounds, strict=True)
        ]
        groups = np.stack(medians)  # (groups, RESAMPLES, 4)
        speedups.append(_speedups(groups[chosen, np.arange(RESAMPLES)[:, None]].sum(axis=1)))
    low, high = np.percentile(speedups[1] / speedups[0], INTERVAL)
    return round(float(low), 4), round(float(high), 4)


def verdict(row: Mapping[str, Any]) -> str:
    """Say in words what changed of a system.

    >>> verdict({"same_passes": True})
    'the same passes'
    """
    if "error" in row:
        return str(row["error"])
    if row["same_passes"]:
        return "the same passes"
    if row.get("gain") is None:
        return "as many tokens a pass"
    if row["gain_lo"] is None:
        return "one group: not enough to say"
    if row["gain_lo"] <= 1 <= row["gain_hi"]:
        return "no difference is shown"
    return "faster" if row["gain"] > 1 else "slower"
