"""What passes cost: v(k) of k rows against one, ours beside other engines', and beside what the machine can do.

A case is a shape of pass: rows above a context (decoding and verifying), many rows above nothing (reading a prompt),
rows of each of several sequences (a batch). A pass is the model's body and head. All cases of all systems take turns,
so that a slow second meets all alike; medians count, and ratios are paired within a round.

Three limits take their turns with them, on the same threads: a prefetching read of as many bytes as the weights have,
and dot products of integers and of floats on registers, which matrices and attention could do at most. Attention is
what a case takes longer than the same rows above a shorter context.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any, TypeVar

from forerun.cli import tables
from forerun.core.batch import Batch, Segment
from forerun.core.config import Precision
from forerun.core.errors import ConfigError, check_least
from forerun.lab.bench import limits
from forerun.lab.bench.peers import burst
from forerun.lab.bench.reads import share_read
from forerun.lab.output import Column, show_table
from forerun.model.backends.native import NativeDecoder
from forerun.model.cache.base import KVCache
from forerun.model.model import Draws, Model
from forerun.model.shapes import flops_per_token

OURS = "forerun"
READ, PEAK, FLOAT_PEAK = "read", "int8 peak", "float peak"
"""The limits: reading the weights' bytes, and nothing but dot products."""
BURST_S = 0.05
"""Of each beside other engines: a process that was just woken needs some passes. Alone, a round has one pass."""

PIECE = 512
"""Tokens of a context that are read at once."""

K = TypeVar("K")
Timer = Callable[[], float]
"""Does its work now and returns the seconds it took."""


@dataclass(frozen=True, slots=True)
class Case:
    """`num_seqs` sequences, each with `rows` tokens to compute above `context` tokens in its cache."""

    num_seqs: int
    rows: int
    context: int

    @classmethod
    def of(cls, text: str, context: int) -> Case:
        """Read `[SEQUENCESx]ROWS[@CONTEXT]`: `8`, `512@0`, `1@4096`, `32x1@128`. Raises ConfigError."""
        match = re.fullmatch(r"(?:(\d+)x)?(\d+)(?:@(\d+))?", text.strip())
        num_seqs, rows = (int(match[1] or 1), int(match[2])) if match else (0, 0)
        if match is None or not num_seqs or not rows:
            raise ConfigError(f"a case is [SEQUENCESx]ROWS[@CONTEXT], as in 8x1@128, got '{text}'")
        return cls(num_seqs, rows, context if match[3] is None else int(match[3]))

    def __str__(self) -> str:
        seqs = f"{self.num_seqs}x" if self.num_seqs > 1 else ""
        return f"{seqs}{self.rows}@{self.context}"

    @property
    def num_rows(self) -> int:
        """Rows of the pass in all."""
        return self.num_seqs * self.rows


Passes = Callable[[Case], float]
"""Another engine: seconds of one pass of a case now, the median of a short burst."""


@dataclass(frozen=True, slots=True)
class PassTimings:
    """The seconds of every round, by system and case, and of the two limits."""

    nbytes: Mapping[int, int]
    """Bytes of weights that a pass reads, by its number of rows: of experts as many as rows choose on average."""
    row_ops: int
    """Operations of one row, a multiply-add being two."""
    attention_ops: Mapping[int, int]
    """Operations of one row's attention, by context."""
    peak_ops: Mapping[str, int]
    """Dot products' operations in a round of `PEAK` and `FLOAT_PEAK`; none where torch computes."""
    phases: Mapping[Case, int]
    """Of a pass, each ending with a wait of all threads for each other; none with recurrent states, or of torch."""
    seconds: Mapping[tuple[str, Case | None], Sequence[float]]

    def document(self) -> dict[str, object]:
        """Return the results as JSON values: one row a case and system."""
        read_s, peak, floats = self._limit(READ), self._peak(PEAK), self._peak(FLOAT_PEAK)
        single = (case for _, case in self.seconds if case is not None and case.num_rows == 1)
        one = next((median(self.seconds[OURS, case]) for case in single), None)
        return {
            "bandwidth_gb_s": round(self.nbytes[1] / read_s / 1e9, 2),
            "peak_gop_s": round(peak / 1e9, 1) if peak else None,
            "float_peak_gflop_s": round(floats / 1e9, 1) if floats else None,
            "weights_mb": round(self.nbytes[1] / 1e6, 2),
            "stream_ms": round(read_s * 1e3, 4),
            "step_over_stream": one and round(one / read_s, 4),
            "rows": [self._row(name, case) for name, case in self.seconds if case is not None],
        }

    def _row(self, name: str, case: Case) -> dict[str, object]:
        rounds, ours = self.seconds[name, case], self.seconds[OURS, case]
        ratios = [seconds / ours_s for seconds, ours_s in zip(rounds, ours, strict=True)]
        typical_s, one_s, peak = median(rounds), self._one_s(name, case), self._peak(PEAK)
        return {
            "case": str(case),
            **({} if name == OURS else {"peer": name}),
            "num_seqs": case.num_seqs,
            "context": case.context,
            "k": case.num_rows,
            "ms": round(typical_s * 1e3, 4),
            "ms_best": round(min(rounds) * 1e3, 4),
            "v": round(typical_s / one_s, 4) if one_s else None,
            "tok_s": round(case.num_rows / typical_s, 1),
            "gb_s": round(self.nbytes[case.num_rows] / typical_s / 1e9, 2),
            "bandwidth_share": round(
                self._limit(READ) / typical_s * self.nbytes[case.num_rows] / self.nbytes[1], 4
            ),
            "peak_share": round(case.num_rows * self.row_ops / typical_s / peak, 4)
            if peak
            else None,
            "attention_gflop_s": self._attention(name, case),
            "phases": self.phases.get(case) if name == OURS else None,
            "times_ours": round(median(ratios), 4),
            "lo": round(min(ratios), 4),
            "hi": round(max(ratios), 4),
        }

    def _limit(self, name: str) -> float:
        return median(self.seconds[name, None])

    def _peak(self, limit: str) -> float | None:
        return self.peak_ops[limit] / self._limit(limit) if limit in self.peak_ops else None

    def _attention(self, name: str, case: Case) -> float | None:
        """Billions of operations a second in what this context takes longer than the shortest with these rows."""
        alike = [
            other
            for system, other in self.seconds
            if other and system == name and replace(other, context=case.context) == case
        ]
        least = min(alike, key=lambda other: other.context)
        more_s = median(self.seconds[name, case]) - median(self.seconds[name, least])
        ops = self.attention_ops[case.context] - self.attention_ops[least.context]
        return round(case.num_rows * ops / more_s / 1e9, 1) if more_s > 0 and ops else None

    def _one_s(self, name: str, case: Case) -> float | None:
        """The pass that v is measured by: one row of one sequence above the same context."""
        rounds = self.seconds.get((name, Case(1, 1, case.context)))
        return median(rounds) if rounds else None


def measure(
    model: Model,
    cases: Sequence[Case],
    *,
    rounds: int,
    others: Mapping[str, Passes],
    kv: Precision = "auto",
) -> Iterator[PassTimings]:
    """Yield the costs known so far after every round; the last one counts. Raises ConfigError."""
    our_timers = timers(model, cases, BURST_S if others else 0, kv)
    nbytes = {k: _nbytes(model, k) for k in {1, *(case.num_rows for case in cases)}}
    all_timers: dict[tuple[str, Case | None], Timer] = {
        (READ, None): timer(_reader(model, nbytes[1]))
    }
    for case in cases:
        all_timers[OURS, case] = our_timers[case]
        for name, passes in others.items():
            all_timers[name, case] = partial(passes, case)
    row_ops, peak_ops, barriers = flops_per_token(model.config), {}, {}
    attention = {
        context: flops_per_token(model.config, context) - row_ops
        for context in {case.context for case in cases}
    }
    if isinstance(model, NativeDecoder):
        if not model.config.is_recurrent:
            barriers = {case: len(phases(model, case, kv)) for case in cases}
        for limit in (PEAK, FLOAT_PEAK):
            multiply, adds = limits.multiplier(model.isa, model.num_threads, limit == FLOAT_PEAK)
            peak_ops[limit], all_timers[limit, None] = 2 * adds, timer(multiply)
    for seconds in in_turns(all_timers, rounds):
        yield PassTimings(nbytes, row_ops, attention, peak_ops, barriers, seconds)


def _reader(model: Model, nbytes: int) -> Callable[[], object]:
    """Make what reads as many bytes of the memory that the weights are in."""
    if not isinstance(model, Draws):
        return limits.reader(nbytes, getattr(model, "num_threads", None))
    from forerun.gpu import decoder, devices

    assert isinstance(model, decoder.GpuDecoder)
    return devices.reader(nbytes, model.device)


def _nbytes(model: Model, num_rows: int) -> int:
    """Return the bytes of weights that a pass reads."""
    if isinstance(model, NativeDecoder):
        sizes = {name: sum(len(part) for part in parts) for name, _, _, parts in model.packed()}
    elif isinstance(model, Draws):
        from forerun.gpu.decoder import GpuDecoder

        assert isinstance(model, GpuDecoder)
        sizes = model.weight_nbytes()
    else:  # imported late: where the kernels compute, torch is not needed
        from forerun.lab.torch.decoder import Decoder

        assert isinstance(model, Decoder)
        sizes = {name: tensor.nbytes for name, tensor in model.weights.items()}
    if "head" in sizes:  # rounded, or never tied
        sizes.pop("embed", None)
    return round(sum(n * share_read(name, model.config, num_rows) for name, n in sizes.items()))


def in_turns(timers: Mapping[K, Timer], rounds: int) -> Iterator[dict[K, list[float]]]:
    """Ask all timers one after the other, again and again; the seconds of all rounds so far, after every round."""
    check_least("repeats", rounds, 1)
    for ask in timers.values():  # warm up
        ask()
    seconds: dict[K, list[float]] = {key: [] for key in timers}
    for _ in range(rounds):
        for key, ask in timers.items():
            seconds[key].append(ask())
        yield seconds


def timers(
    model: Model, cases: Sequence[Case], burst_s: float = 0, kv: Precision = "auto"
) -> dict[Case, Timer]:
    """Return timers of our own passes: body, and head of every row, or of a prompt's last. Raises ConfigError.

    Cases of the same sequences and context share a cache.
    """
    longest: dict[tuple[int, int], int] = {}
    for case in cases:
        shape = (case.num_seqs, case.context)
        longest[shape] = max(longest.get(shape, 0), case.context + case.rows)
    limit = model.config.max_position
    if max(longest.values()) > limit:
        raise ConfigError(f"context and rows must be at most {limit}, got {max(longest.values())}")
    caches = {shape: _filled(model, *shape, length, kv) for shape, length in longest.items()}
    return {
        case: timer(_pass(model, caches[case.num_seqs, case.context], case), burst_s)
        for case in cases
    }


def timer(action: Callable[[], object], burst_s: float = 0) -> Timer:
    """Times an action once, or takes the median of a burst."""
    return partial(burst, action, burst_s, 3 if burst_s else 1)


def phases(model: NativeDecoder, case: Case, kv: Precision = "auto") -> list[int]:
    """Return the pieces of each phase of a case's pass, the head's left out, of a model without recurrent states.

    Nothing is computed.
    """
    cache = model.new_cache(case.num_seqs, case.context + case.rows, kv)
    slots = []
    for _ in range(case.num_seqs):
        opened = cache.open((1,) * case.context)
        assert opened is not None
        slot, reused = opened
        cache.keep(slot, range(case.context - reused))
        slots.append(slot)
    return [pieces for pieces in model.phases(_batch(model, case, slots), cache) if pieces > 0]


def _filled(model: Model, num_seqs: int, context: int, length: int, kv: Precision) -> KVCache:
    """A cache of sequences that hold `context` tokens each: any will do."""
    cache = model.new_cache(num_seqs, length, kv)
    tokens = tuple(i % model.config.vocab_size for i in range(context))
    for _ in range(num_seqs if context else 0):
        opened = cache.open(tokens)
        assert opened is not None
        slot, reused = opened
        pieces = range(reused, context, PIECE)
        for start in tables.track(pieces, f"reading {context} tokens"):
            piece = tokens[start : start + PIECE]
            model.forward(Batch((Segment(slot, start, tuple(piece), certain=len(piece)),)), cache)
            cache.keep(slot, range(len(piece)))
    return cache


def _batch(model: Model, case: Case, slots: Iterable[int]) -> Batch:
    """A pass of different tokens that are certain, as a prompt's are: recurrent states take few others."""
    tokens = tuple(1 + i % (model.config.vocab_size - 1) for i in range(case.rows))
    return Batch(
        tuple(Segment(slot, case.context, tuple(tokens), certain=len(tokens)) for slot in slots)
    )


def _pass(model: Model, cache: KVCache, case: Case) -> Callable[[], object]:
    """Return what computes a pass and its logits; on a device the likeliest tokens alone come from it, as in a step."""
    batch = _batch(model, case, range(case.num_seqs))
    rows = range(batch.num_rows)[-1 if case.context == 0 else 0 :]
    if isinstance(model, Draws):
        return lambda: model.topk_and_draw(model.forward(batch, cache), rows, 1)
    return lambda: model.head(model.forward(batch, cache).last[rows.start :])


def show(document: Mapping[str, Any]) -> None:
    """Print a line a case and system, and the limits."""
    columns: dict[str, Column] = {
        "pass": "case",
        "rows": "k",
        "ms": ("ms", 2),
        "v": ("v", 2),
        "tok/s": ("tok_s", 0),
        "GB/s": ("gb_s", 1),
        "band-\nwidth": ("bandwidth_share", ".0%"),
        "int8\npeak": ("peak_share", ".0%"),
    }
    if any(row["attention_gflop_s"] for row in document["rows"]):
        columns["attention\nGflop/s"] = ("attention_gflop_s", 0)
    if any("peer" in row for row in document["rows"]):
        columns |= {
            "who": lambda row: row.get("peer", OURS),
            "times\nours": ("times_ours", 2),
            "range": lambda row: f"{row['lo']:.2f}-{row['hi']:.2f}",
        }
    out = tables.report()
    show_table(document["rows"], columns)
    step = document["step_over_stream"]
    out.print(
        f"{document['weights_mb']} MB of weights at {document['bandwidth_gb_s']} GB/s: {document['stream_ms']} ms"
        + (f"; a step of one row takes {step} times that" if step else "")
    )
    if document["peak_gop_s"]:
        out.print(
            f"dot products on registers: {document['peak_gop_s']} Gop/s of int8, "
            f"{document['float_peak_gflop_s']} of floats"
        )
