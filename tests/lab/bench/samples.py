"""Measurements with chosen figures, and a byte tokenizer, for the tests of the benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from forerun.engine.stats import SpecStats
from forerun.lab.bench import summary
from forerun.lab.bench.measurement import Measurement, Round
from forerun.lab.bench.pass_costs import PassCosts
from forerun.text.tokenizer import Pieces

ORIGIN = {"model": "tiny", "quant": "F32", "task": "toy", "threads": 1, "temperature": 0}
COUNTS = {field.name for field in fields(SpecStats)}


def measured(system: str, group: str, decode_s: float, **given: object) -> Round:
    """A round of one system: ten decoded tokens in `decode_s` seconds, in category `group[0]`."""
    number, category = given.pop("round", 0), given.pop("category", group[0])
    counts = {"passes": 10, "emitted": 10} | {k: given.pop(k) for k in COUNTS & given.keys()}
    figures: dict[str, object] = {
        "token_ids": [[*range(11)]],
        "decode_tokens": 10,
        "prefill_s": 0.5,
        "decode_s": decode_s,
        "ttft_s": [0.5],
        "peak_rss_mb": 1.0,
        "stats": SpecStats(**counts),
    }
    return Round(group, category, number, 1, [Measurement(system, **{**figures, **given})])


def together(rounds: Sequence[Round]) -> list[Round]:
    """One round a group and number, with everyone in it."""
    by_group: dict[str, Round] = {}
    for each in rounds:
        known = by_group.setdefault(each.key, Round(each.group, each.category, each.round, 1, []))
        known.measurements.extend(each.measurements)
    return [*by_group.values()]


def rows(rounds: Sequence[Round], origin: dict[str, object]) -> list[summary.Row]:
    """The rows of these rounds."""
    return summary.rows(together(rounds), origin)


class Bytes:
    """A tokenizer whose ids are bytes."""

    adds_space = False
    special_ids = frozenset[int]()
    pieces = Pieces([bytes([i]) for i in range(256)])


def costs(ms: dict[int, float], peer: str | None = None) -> PassCosts:
    """Pass costs of the model of `ORIGIN`."""
    return PassCosts(ORIGIN, ms, peer)
