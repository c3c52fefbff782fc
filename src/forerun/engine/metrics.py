"""Counts of an engine under vLLM's names, with the prefix `forerun:`; the time series of a server are not here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from forerun.core.types import Event, FinishReason
from forerun.engine.engine import Engine
from forerun.engine.scheduler import PREEMPTED

PREFIX = "forerun:"


@dataclass(frozen=True, slots=True)
class Counter:
    """A number that only grows."""

    name: str
    labels: Mapping[str, str]
    value: int


@dataclass(frozen=True, slots=True)
class Gauge:
    """A number of this moment."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Vector:
    """A counter for each position of a draft."""

    name: str
    labels: Mapping[str, str]
    values: list[int]


Metric = Counter | Gauge | Vector


@dataclass(slots=True)
class RequestCounts:
    """Tokens read and written for requests, and how many sequences ended for which reason."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: dict[FinishReason, int] = field(
        default_factory=lambda: dict.fromkeys(FinishReason, 0)
    )

    def record(self, event: Event) -> None:
        """Count what an event made final."""
        self.generation_tokens += len(event.token_ids)
        if event.finish_reason is not None:
            self.finished[event.finish_reason] += 1


def read(engine: Engine, served: RequestCounts, model: str) -> list[Metric]:
    """Return the metrics at this moment, labelled with the model's name. Nothing may step the engine meanwhile."""
    labels = {"model_name": model, "engine": "0"}
    stats, cache, scheduler = engine.stats, engine.cache, engine.scheduler
    gauges = {
        "num_requests_running": len(scheduler.running),
        "num_requests_waiting": len(scheduler.waiting),
        "kv_cache_usage_perc": cache.usage(),
    }
    counts = {
        "prompt_tokens": served.prompt_tokens,
        "generation_tokens": served.generation_tokens,
        "engine_steps": engine.timers.num_passes,
        "engine_rows": engine.timers.num_rows,
        "prefix_cache_queries": scheduler.num_queried,
        "prefix_cache_hits": scheduler.num_reused,
        "external_prefix_cache_hits": scheduler.num_from_disk,
        "num_preemptions": scheduler.memory_steps[PREEMPTED],
        "recomputed_tokens": scheduler.num_recomputed,
        "spec_decode_num_drafts": stats.drafts,
        "spec_decode_num_draft_tokens": stats.drafted,
        "spec_decode_num_accepted_tokens": stats.accepted,
    }
    by_position = "spec_decode_num_accepted_tokens_per_pos"
    sources = {
        "local_compute": scheduler.num_computed,
        "local_cache_hit": scheduler.num_reused,
        "external_kv_transfer": scheduler.num_from_disk,
    }
    return [
        *(Gauge(PREFIX + name, labels, value) for name, value in gauges.items()),
        *(Counter(PREFIX + name, labels, value) for name, value in counts.items()),
        *(
            Counter(f"{PREFIX}prompt_tokens_by_source", labels | {"source": source}, count)
            for source, count in sources.items()
        ),
        *(
            Counter(f"{PREFIX}memory_pressure_steps", labels | {"step": step}, count)
            for step, count in scheduler.memory_steps.items()
        ),
        *(
            Counter(f"{PREFIX}request_success", labels | {"finished_reason": reason.value}, value)
            for reason, value in served.finished.items()
        ),
        Vector(PREFIX + by_position, labels, [*stats.accepted_by_depth]),
    ]
