"""From measurements to rows of a table: one a system and category, and one a system for all.

A row's keys are those of every forerun document. Rates are totals: tokens of all prompts over seconds of all prompts,
the seconds of one group being the median of its rounds. The interval of a speed-up comes from drawing groups anew
(bootstrap): a group's plain and drafted times stay together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.engine.stats import SpecStats
from forerun.lab.bench.measurement import Measurement, Provenance, Round
from forerun.lab.bench.run import PLAIN

ALL = "all"
RESAMPLES = 2000
INTERVAL = (2.5, 97.5)
"""Percentiles of the resampled speed-ups: a 95 % interval."""

Row = dict[str, Any]
Pair = tuple[Measurement, Measurement]
"""A system's measurement and plain decoding's, or a baseline's, of the same group and round."""


def rows(
    rounds: Sequence[Round], provenance: Provenance, baseline: str | None = None, plain: str = PLAIN
) -> list[Row]:
    """Return a row for each system and category, `all` first, in the order in which they were measured.

    `plain` is the system whose tokens and speed are the measure. With a `baseline`, another one's name, each row has
    the ratio of its speed to that one's too.
    """
    table: list[Row] = []
    by_system: dict[str, list[Measurement]] = {}
    for measurement in (m for r in rounds for m in r.measurements):
        by_system.setdefault(measurement.system, []).append(measurement)
    for system, measured in by_system.items():
        base, errors = _base(measured[0], provenance), [m.error for m in measured if m.error]
        is_seeded = measured[0].peer is None and provenance.get("seed") is not None
        has_one_answer = is_seeded or provenance.get("temperature") == 0
        if errors:
            table.append({**base, "category": ALL, "error": errors[0]})
            continue
        for category in dict.fromkeys([ALL, *(r.category for r in rounds)]):
            chosen = [r for r in rounds if category in (ALL, r.category)]
            if pairs := _pairs(chosen, system, plain):
                num_prompts = {r.group: r.num_prompts for r in chosen}
                values = _values(pairs, num_prompts, has_one_answer)
                if baseline is not None and (others := _pairs(chosen, system, baseline)):
                    names = ("over_baseline", "over_baseline_lo", "over_baseline_hi")
                    ratios = zip(names, _speedup(others), strict=True)
                    values |= {"baseline": baseline, **{n: _round(v, 4) for n, v in ratios}}
                table.append({**base, "category": category, **values})
    return table


def totals(rounds: Sequence[Round], provenance: Provenance, plain: str = PLAIN) -> dict[str, Row]:
    """Return the row of each system over all categories, by its name."""
    table = rows(rounds, provenance, plain=plain)
    return {row["drafter"]: row for row in table if row["category"] == ALL}


def _pairs(rounds: Sequence[Round], system: str, other: str) -> dict[str, list[Pair]]:
    """A system's measurements beside another's, by group, where both were measured."""
    groups: dict[str, list[Pair]] = {}
    for each in rounds:
        first, second = each.of(system), each.of(other)
        if first is not None and second is not None:
            groups.setdefault(each.group, []).append((first, second))
    return groups


def num_different(table: Sequence[Row]) -> int:
    """Count the prompts whose tokens our drafters changed; any at all is a defect."""
    return sum(
        row["prompts"] - row["identical"]
        for row in table
        if row["category"] == ALL and "peer" not in row and row.get("identical") is not None
    )


def _base(system: Measurement, provenance: Provenance) -> Row:
    base: Row = {key: provenance.get(key) for key in ("model", "quant", "task", "threads")}
    if system.peer is None:
        return {**base, "drafter": system.system}
    drafter = system.system.removeprefix(f"{system.peer} ")
    return {**base, "quant": system.quant or base["quant"], "peer": system.peer, "drafter": drafter}


def _values(
    groups: Mapping[str, Sequence[Pair]], num_prompts: Mapping[str, int], has_one_answer: bool
) -> Row:
    # Every round of a group gives the same counts.
    first = [pairs[0][0] for pairs in groups.values()]
    every = [ours for pairs in groups.values() for ours, _ in pairs]
    stats = SpecStats.total(m.stats for m in first)
    tokens, seconds = int(_total(groups, "decode_tokens")), _total(groups, "decode_s")
    speedup, low, high = _speedup(groups)
    is_ours = first[0].peer is None
    identical = sum(_num_identical(pairs, num_prompts[name]) for name, pairs in groups.items())
    return {
        "prompts": sum(num_prompts[name] for name in groups),
        "tokens": sum(len(ids) for m in first for ids in m.token_ids),
        "seconds": _round(_total(groups, "prefill_s") + seconds, 4),
        "tok_s": _round(tokens / seconds if seconds else 0.0, 2),
        "speedup": _round(speedup, 4),
        "speedup_lo": _round(low, 4),
        "speedup_hi": _round(high, 4),
        "tau": _round(stats.tau, 4) if is_ours else None,
        "overhead": _round(stats.tau / speedup - 1, 4) if is_ours and speedup else None,
        "acceptance_rate": _round(stats.acceptance_rate, 4) if stats.drafted else None,
        "acceptance_by_depth": [round(rate, 4) for rate in stats.acceptance_by_depth],
        "passes": stats.passes,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "rejected": stats.rejected,
        "draft_ms": _round(_total(groups, "draft_s") * 1e3, 2) if is_ours else None,
        "verify_ms": _round(_total(groups, "verify_s") * 1e3, 2) if is_ours else None,
        "ttft_ms": _round(_median_ms([s for m in every for s in m.ttft_s]), 2),
        "identical": identical if has_one_answer else None,
        "peak_rss_mb": max(m.peak_rss_mb for m in every),
    }


def _total(groups: Mapping[str, Sequence[Pair]], field: str) -> float:
    """Of all groups; a group counts with the median of its rounds."""
    return float(_medians(groups, field, 0).sum())


def _medians(groups: Mapping[str, Sequence[Pair]], field: str, side: int) -> NDArray[np.float64]:
    """Of each group (groups,); side 0 is the system's, side 1 that of what it is compared with."""
    each = [median(getattr(pair[side], field) for pair in pairs) for pairs in groups.values()]
    return np.array(each, float)


def _speedup(groups: Mapping[str, Sequence[Pair]]) -> tuple[float, float | None, float | None]:
    """Over what it is compared with, with its interval; no interval for fewer than two groups."""
    fields = ("decode_tokens", "decode_s")
    columns = np.stack([_medians(groups, name, side) for side in (0, 1) for name in fields])
    value = float(_ratio(columns.sum(axis=1, keepdims=True))[0])
    num = len(groups)
    if num < 2:
        return value, None, None
    drawn = np.random.default_rng(0).integers(num, size=(RESAMPLES, num))
    low, high = np.percentile(_ratio(columns[:, drawn].sum(axis=2)), INTERVAL)
    return value, float(low), float(high)


def _ratio(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Tokens a second over plain tokens a second, of columns (4, n); 1 where nothing was decoded."""
    tokens, seconds, plain_tokens, plain_seconds = columns
    drafted, plain = tokens * plain_seconds, plain_tokens * seconds
    return np.divide(drafted, plain, out=np.ones_like(drafted), where=plain > 0)


def _num_identical(pairs: Sequence[Pair], num_prompts: int) -> int:
    """Prompts of a group whose tokens are the plain ones in every step and round."""
    different = sum(
        one != other
        for drafted, plain in pairs
        for one, other in zip(drafted.token_ids, plain.token_ids, strict=False)
    )
    return max(num_prompts - different, 0)


def _median_ms(seconds: Sequence[float]) -> float | None:
    return median(seconds) * 1e3 if seconds else None


def _round(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
