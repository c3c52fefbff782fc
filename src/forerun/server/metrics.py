"""Prometheus' view of a server: the engine's counts under vLLM's names, and histograms of what clients wait for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client import Counter as PrometheusCounter
from prometheus_client import Gauge as PrometheusGauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from forerun.engine import metrics
from forerun.engine.metrics import PREFIX, Counter, Gauge
from forerun.engine.sequence import SequenceState
from forerun.server.async_request import AsyncRequest, StreamEvent
from forerun.system.device import resident_nbytes

_FIRST_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0),
)
_NEXT_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15),
    *(0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0),
)
_TOTAL_S = (
    *(0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0),
    *(40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000)

_HISTOGRAMS = (
    ("time_to_first_token_seconds", "Seconds from a request to its first token.", _FIRST_S),
    ("inter_token_latency_seconds", "Seconds of a step, for each token that it emitted.", _NEXT_S),
    ("e2e_request_latency_seconds", "Seconds from a request to its end.", _TOTAL_S),
    ("request_queue_time_seconds", "Seconds that a sequence waited for a place.", _TOTAL_S),
    ("request_prefill_time_seconds", "Seconds from its place to its first token.", _TOTAL_S),
    ("request_decode_time_seconds", "Seconds from its first token to its end.", _TOTAL_S),
    ("request_inference_time_seconds", "Seconds from its place to its end.", _TOTAL_S),
    ("request_time_per_output_token_seconds", "Seconds for each token after the first.", _NEXT_S),
    ("request_prompt_tokens", "Prompt tokens of a request.", _TOKENS),
    ("request_generation_tokens", "Tokens generated for a sequence.", _TOKENS),
    ("request_max_num_generation_tokens", "Tokens of a request's longest answer.", _TOKENS),
    ("request_params_n", "Answers that a request asked for.", (1, 2, 5, 10, 20)),
    ("request_params_max_tokens", "Tokens that a request allowed.", _TOKENS),
)
HELP = {
    "engine_running": "1 while the model's engine answers, 0 when an error has ended it.",
    "num_requests_running": "Sequences that run.",
    "num_requests_waiting": "Sequences that wait for a place.",
    "kv_cache_usage_perc": "Share of the cache's memory that running sequences hold.",
    "prompt_tokens": "Prompt tokens of all requests.",
    "generation_tokens": "Tokens generated.",
    "prefix_cache_queries": "Tokens of sequences that began.",
    "prefix_cache_hits": "Tokens of them that the cache held already, in memory.",
    "external_prefix_cache_hits": "Tokens of them that were read from the prompt cache on disk.",
    "num_preemptions": "Times a running sequence gave up its memory, to be read again.",
    "memory_pressure_steps": "What gave way where memory ran short, by step.",
    "request_success": "Sequences that ended, by reason.",
    "spec_decode_num_drafts": "Drafts verified.",
    "spec_decode_num_draft_tokens": "Tokens drafted.",
    "spec_decode_num_accepted_tokens": "Drafted tokens that were accepted.",
    "spec_decode_num_accepted_tokens_per_pos": "Drafts whose token at this position was accepted.",
}

METHODS = frozenset(("GET", "POST", "HEAD", "OPTIONS"))
ENGINE_RUNNING = PREFIX + "engine_running"


class ServerMetrics:
    """What is observed of the requests of all models."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._histograms = [
            Histogram(PREFIX + name, text, [*_labels("")], registry=self._registry, buckets=bounds)
            for name, text, bounds in _HISTOGRAMS
        ]
        self._requests = PrometheusCounter(
            "http_requests",
            "Requests by method and status.",
            ["method", "status"],
            registry=self._registry,
        )

    def count(self, method: str, status: int | None) -> None:
        """Count an HTTP request that has ended; without a status its client has gone."""
        known = method if method in METHODS else "other"
        self._requests.labels(known, str(status or "gone")).inc()

    def of(self, model: str) -> ModelMetrics:
        """Return those of the model of this name."""
        return ModelMetrics(*(one.labels(**_labels(model)) for one in self._histograms))

    def page(self, counts: Mapping[str, Sequence[metrics.Metric]]) -> bytes:
        """Write the text that Prometheus reads, with the counts that the models' engines have at this moment."""
        registry = CollectorRegistry()
        registry.register(_Engines(counts))
        resident = PrometheusGauge(
            "process_resident_memory_bytes", "Resident memory size in bytes.", registry=registry
        )
        resident.set(resident_nbytes())
        return generate_latest(registry) + generate_latest(self._registry)


@dataclass(frozen=True, slots=True)
class ModelMetrics:
    """What is observed of one model's requests: the histograms above."""

    _first: Histogram
    _next: Histogram
    _total: Histogram
    _queue: Histogram
    _prefill: Histogram
    _decode: Histogram
    _inference: Histogram
    _each: Histogram
    _prompt: Histogram
    _generation: Histogram
    _longest: Histogram
    _n: Histogram
    _allowed: Histogram

    def follow(self, request: AsyncRequest) -> Callable[[StreamEvent], None]:
        """Return what is to be called with each event of a request."""
        last_s: dict[int, float] = {}

        def observe(event: StreamEvent) -> None:
            num_tokens = len(event.event.token_ids)
            before = last_s.get(event.completion)
            if before is None and num_tokens:
                self._first.observe(event.time_s - request.start_s)
            elif before is not None:
                for _ in range(num_tokens):
                    self._next.observe((event.time_s - before) / num_tokens)
            if num_tokens:
                last_s[event.completion] = event.time_s

        return observe

    def finish(self, request: AsyncRequest, end_s: float) -> None:
        """Count a request that has ended."""
        self._total.observe(end_s - request.start_s)
        for handle in request.handles:
            params = handle.runs[0].seq.params
            self._prompt.observe(handle.runs[0].seq.num_prompt)
            self._n.observe(params.n)
            if params.max_tokens is not None:
                self._allowed.observe(params.max_tokens)
            self._longest.observe(max(map(_num_generated, handle.runs)))
            for run in handle.runs:
                self._generation.observe(_num_generated(run))
                self._observe_phases(run, end_s)

    def _observe_phases(self, run: SequenceState, end_s: float) -> None:
        """Observe how long a sequence waited, was read and wrote, as far as it came."""
        if (begun_s := run.seq.admitted_s) is None:
            return
        self._queue.observe(begun_s - run.start_s)
        self._inference.observe(end_s - begun_s)
        if (first_s := run.first_token_s) is not None:
            self._prefill.observe(first_s - begun_s)
            self._decode.observe(end_s - first_s)
            if (num_after := _num_generated(run) - 1) > 0:
                self._each.observe((end_s - first_s) / num_after)


def _num_generated(run: SequenceState) -> int:
    return len(run.seq.tokens) - run.seq.num_prompt


def renamed(page: bytes, prefix: str) -> bytes:
    """Give the names of a page another prefix; labels and help texts stay."""
    own, other = PREFIX.encode(), prefix.encode()
    if own == other:
        return page
    return re.sub(rb"^((?:# (?:HELP|TYPE) )?)" + own, rb"\1" + other, page, flags=re.MULTILINE)


def _labels(model: str) -> dict[str, str]:
    """Make vLLM's labels of a model."""
    return {"model_name": model, "engine": "0"}


class _Engines(Collector):
    """The engines' counts as families of Prometheus."""

    def __init__(self, counts: Mapping[str, Sequence[metrics.Metric]]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        counts = [(one, model) for model, each in self._counts.items() for one in each]
        for one, model in counts:
            labels = {**one.labels, **_labels(model)}
            if isinstance(one, Counter | Gauge):
                rows = [(labels, float(one.value))]
            else:
                rows = [
                    ({**labels, "position": str(i)}, float(n)) for i, n in enumerate(one.values)
                ]
            if not rows:
                continue
            kind = GaugeMetricFamily if isinstance(one, Gauge) else CounterMetricFamily
            text, names = HELP[one.name.removeprefix(PREFIX)], [*rows[0][0]]
            family = families.setdefault(one.name, kind(one.name, text, labels=names))
            for row, value in rows:
                family.add_metric([row[name] for name in names], value)
        yield from families.values()
