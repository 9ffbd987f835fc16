"""Requests answered by version of a model: what tells whether a canary does worse."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from model_server.serving.servable import Servable


class VersionRequests(Collector):
    """Read when scraped. `version_of` returns the loaded version of a model id."""

    def __init__(
        self, servables: Callable[[], Iterable[Servable]], version_of: Callable[[str], str]
    ) -> None:
        self._servables = servables
        self._version_of = version_of

    def collect(self) -> Iterable[Metric]:
        metric = CounterMetricFamily(
            "sax_version_requests",
            "Requests answered since this version was loaded, by outcome; without those whose "
            "caller went away",
            labels=["model", "version", "outcome"],
        )
        for servable in self._servables():
            labels, methods = self._labels(servable), servable.methods.values()
            metric.add_metric([*labels, "success"], sum(each.succeeded for each in methods))
            metric.add_metric([*labels, "error"], sum(each.failed for each in methods))
        yield metric

    def _labels(self, servable: Servable) -> tuple[str, str]:
        return servable.model_id, self._version_of(servable.model_id)
