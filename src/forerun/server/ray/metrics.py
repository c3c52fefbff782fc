"""What all replicas count, on one page: each replica's series keep their names, and say whose they are by `engine`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

ENGINE = "engine"
"""vLLM's label for one of several engines; of a server alone it is 0."""


def joined(pages: Mapping[str, str], prefix: str, num_retried: int) -> bytes:
    """Join the pages of replicas, by their names, and add what the gateway counts."""
    registry = CollectorRegistry()
    registry.register(_Joined(pages, prefix, num_retried))
    return generate_latest(registry)


class _Joined(Collector):
    def __init__(self, pages: Mapping[str, str], prefix: str, num_retried: int) -> None:
        self._pages, self._prefix, self._num_retried = pages, prefix, num_retried

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for name, page in self._pages.items():
            for found in text_string_to_metric_families(page):
                family = Metric(found.name, found.documentation, found.type)
                family = families.setdefault(found.name, family)
                for one in found.samples:
                    labels = {**one.labels, **({ENGINE: name} if ENGINE in one.labels else {})}
                    family.add_sample(one.name, labels, one.value)
        yield from families.values()
        gauge = GaugeMetricFamily(f"{self._prefix}replicas", "Replicas that answer.")
        gauge.add_metric([], len(self._pages))
        yield gauge
        text = "Requests that were asked again because their replica was lost."
        counter = CounterMetricFamily(f"{self._prefix}retries", text)
        counter.add_metric([], self._num_retried)
        yield counter
