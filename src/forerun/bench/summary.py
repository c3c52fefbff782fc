"""From measurements to rows of figures: one a contender and category, and one a contender for all.

A row's keys are those of every forerun document. Rates are totals: tokens of all prompts over seconds of all prompts,
the seconds of one prompt being the median of its rounds. The interval of a speed-up comes from drawing prompts anew
(bootstrap): a prompt's plain and drafted times stay together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from forerun.bench.record import Measurement, Provenance
from forerun.bench.run import PLAIN
from forerun.engine.stats import SpecStats

ALL = "all"
RESAMPLES = 2000
INTERVAL = (2.5, 97.5)
"""Percentiles of the resampled speed-ups: a 95 % interval."""

Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Cell:
    """One contender in one category: its measurements by unit, and plain decoding's of the same units."""

    units: tuple[tuple[Measurement, ...], ...]
    plain: tuple[tuple[Measurement, ...], ...]

    def totals(self) -> tuple[int, float]:
        """Decoded tokens and decode seconds."""
        tokens, seconds = _rates(self.units)
        return int(tokens.sum()), float(seconds.sum())

    def speedup(self) -> tuple[float, float | None, float | None]:
        """Over plain decoding, with its interval; no interval for fewer than two units."""
        tokens, seconds = _rates(self.units)
        plain_tokens, plain_seconds = _rates(self.plain)
        columns = np.stack([tokens, seconds, plain_tokens, plain_seconds])  # (4, units)
        value = float(_ratio(columns.sum(axis=1, keepdims=True))[0])
        if len(self.units) < 2:
            return value, None, None
        drawn = np.random.default_rng(0).integers(
            len(self.units), size=(RESAMPLES, len(self.units))
        )
        low, high = np.percentile(_ratio(columns[:, drawn].sum(axis=2)), INTERVAL)
        return value, float(low), float(high)

    def num_identical(self) -> int:
        """Prompts whose tokens are the plain ones in every turn and round."""
        return sum(_num_identical(*pair) for pair in zip(self.units, self.plain, strict=True))


def rows(measurements: Sequence[Measurement], provenance: Provenance) -> list[Row]:
    """A row for each contender and category, `all` first, in the order in which they were measured."""
    found = []
    for contender in dict.fromkeys(m.contender for m in measurements):
        own = [m for m in measurements if m.contender == contender]
        error = next((m.error for m in own if m.error), None)
        base = _base(own[0], provenance)
        if error is not None:
            found.append({**base, "category": ALL, "error": error})
            continue
        for category in dict.fromkeys([ALL, *(m.category for m in own)]):
            cell = _cell(measurements, contender, category)
            if cell.units:
                found.append({**base, "category": category, **_figures(cell, provenance)})
    return found


def num_different(found: Sequence[Row]) -> int:
    """Prompts whose greedy tokens our drafters changed; any at all is a defect."""
    different = 0
    for row in found:
        prompts, identical = row.get("prompts"), row.get("identical")
        if row["category"] == ALL and "peer" not in row and identical is not None:
            assert isinstance(prompts, int)
            assert isinstance(identical, int)
            different += prompts - identical
    return different


def _base(measurement: Measurement, provenance: Provenance) -> Row:
    base: Row = {key: provenance.get(key) for key in ("model", "quant", "task", "threads")}
    drafter = measurement.contender
    if measurement.quant is not None:
        base["quant"] = measurement.quant
    if measurement.peer is not None:
        base["peer"] = measurement.peer
        drafter = drafter.removeprefix(f"{measurement.peer} ")
    return {**base, "drafter": drafter}


def _cell(measurements: Sequence[Measurement], contender: str, category: str) -> Cell:
    """Units that both sides finished, in the rounds they share."""
    by_key = {(m.contender, m.unit, m.round): m for m in measurements if m.error is None}
    pairs: dict[str, list[tuple[Measurement, Measurement]]] = {}
    for (name, unit, round_), own in by_key.items():
        plain = by_key.get((PLAIN, unit, round_))
        if name == contender and category in (ALL, own.category) and plain is not None:
            pairs.setdefault(unit, []).append((own, plain))
    return Cell(
        tuple(tuple(own for own, _ in rounds) for rounds in pairs.values()),
        tuple(tuple(plain for _, plain in rounds) for rounds in pairs.values()),
    )


def _figures(cell: Cell, provenance: Provenance) -> Row:
    each = [m for rounds in cell.units for m in rounds]
    first = [rounds[0] for rounds in cell.units]  # every round of a unit gives the same counts
    tokens, seconds = cell.totals()
    speedup, low, high = cell.speedup()
    stats = _stats(first)
    is_ours = each[0].peer is None
    is_greedy = provenance.get("temperature") == 0
    return {
        "prompts": sum(m.num_prompts for m in first),
        "tokens": sum(m.num_tokens for m in first),
        "seconds": _round(_typical(cell, "prefill_s") + seconds, 4),
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
        "draft_ms": _round(_typical(cell, "draft_s") * 1e3, 2) if is_ours else None,
        "verify_ms": _round(_typical(cell, "verify_s") * 1e3, 2) if is_ours else None,
        "ttft_ms": _round(median(s for m in each for s in m.ttft_s) * 1e3, 2),
        "identical": cell.num_identical() if is_greedy else None,
        "peak_rss_mb": max(m.peak_rss_mb for m in each),
    }


def _typical(cell: Cell, field: str) -> float:
    """Seconds of all units, those of one unit being the median of its rounds."""
    return float(sum(median(getattr(m, field) for m in rounds) for rounds in cell.units))


def _rates(
    units: Sequence[Sequence[Measurement]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Decoded tokens (units,) and decode seconds (units,): the median of the rounds."""
    tokens = [float(median(m.decode_tokens for m in rounds)) for rounds in units]
    seconds = [median(m.decode_s for m in rounds) for rounds in units]
    return np.array(tokens), np.array(seconds)


def _ratio(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Tokens a second over plain tokens a second, of columns (4, n); 1 where nothing was decoded."""
    tokens, seconds, plain_tokens, plain_seconds = columns
    ours, theirs = tokens * plain_seconds, plain_tokens * seconds
    return np.divide(ours, theirs, out=np.ones_like(ours), where=theirs > 0)


def _stats(each: Sequence[Measurement]) -> SpecStats:
    total = SpecStats()
    for m in each:
        total.add(
            SpecStats(
                passes=m.passes,
                drafted=m.drafted,
                accepted=m.accepted,
                emitted=m.emitted,
                drafted_by_depth=list(m.drafted_by_depth),
                accepted_by_depth=list(m.accepted_by_depth),
            )
        )
    return total


def _num_identical(own: Sequence[Measurement], plain: Sequence[Measurement]) -> int:
    """Of the prompts of one unit; a unit of several turns counts its prompts by their first difference."""
    pairs = [
        (a, b) for x, y in zip(own, plain, strict=True) for a, b in zip(x.token_ids, y.token_ids)
    ]
    if all(a == b for a, b in pairs):
        return own[0].num_prompts
    return max(own[0].num_prompts - sum(a != b for a, b in pairs), 0)


def _round(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
