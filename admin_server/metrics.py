"""The figures of a cell for Prometheus, read from the cell at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from admin_server.cell import Cell
from sax.types import ServableStatus


class CellCollector(Collector):
    """All `sax_admin_...` metrics of one cell."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    def collect(self) -> Iterator[Metric]:
        """One family after the other."""
        yield from self._totals()
        yield from self._models()
        yield from self._servers()

    def _totals(self) -> Iterator[Metric]:
        cell = self._cell
        loop = cell.reconciler
        yield GaugeMetricFamily("sax_admin_models", "Published models", len(cell.models()))
        yield GaugeMetricFamily("sax_admin_servers", "Joined model servers", len(cell.servers()))
        yield CounterMetricFamily("sax_admin_records", "Records written", cell.ledger.sequence)
        yield GaugeMetricFamily(
            "sax_admin_store_failing",
            "1 while the last change could not be made durable",
            float(bool(cell.ledger.store_trouble)),
        )
        yield CounterMetricFamily("sax_admin_loads", "Loads done", loop.loads)
        yield CounterMetricFamily("sax_admin_unloads", "Unloads done", loop.unloads)
        yield CounterMetricFamily(
            "sax_admin_failed_actions", "Loads and unloads that failed", loop.failed_actions
        )

    def _models(self) -> Iterator[Metric]:
        wanted = GaugeMetricFamily(
            "sax_admin_wanted_replicas", "As published, or as the load wants", labels=["model"]
        )
        replicas = GaugeMetricFamily(
            "sax_admin_replicas", "Replicas by status", labels=["model", "status"]
        )
        for model in self._cell.models():
            wanted.add_metric([model.spec.model_id], model.wanted_replicas)
            statuses = [replica.status for replica in model.replicas]
            for status in sorted({*statuses, ServableStatus.LOADED}):
                replicas.add_metric([model.spec.model_id, status], statuses.count(status))
        yield wanted
        yield replicas
        yield from self._requests()

    def _requests(self) -> Iterator[Metric]:
        """What the autoscaler goes by."""
        queued, running = Counter[str](), Counter[str]()
        for server in self._cell.servers():
            for servable in server.servables:
                queued[servable.model_id] += servable.queued
                running[servable.model_id] += servable.running
        for name, text, counts in (
            ("sax_admin_queued_requests", "Requests that wait at model servers", queued),
            ("sax_admin_running_requests", "Requests that model servers compute", running),
            ("sax_admin_held_requests", "Requests held for want of a replica", self._cell.held()),
        ):
            family = GaugeMetricFamily(name, text, labels=["model"])
            for model_id in sorted(self._cell.ledger.state.models):
                family.add_metric([model_id], counts.get(model_id, 0))
            yield family

    def _servers(self) -> Iterator[Metric]:
        used = GaugeMetricFamily(
            "sax_admin_server_memory_used_bytes", "As the server tells", labels=["server"]
        )
        total = GaugeMetricFamily(
            "sax_admin_server_memory_total_bytes", "As the server tells", labels=["server"]
        )
        for server in self._cell.servers():
            used.add_metric([server.info.address], server.memory_used)
            total.add_metric([server.info.address], server.info.memory_total)
        yield used
        yield total


def registry_of(cell: Cell) -> CollectorRegistry:
    """A registry of this cell alone."""
    registry = CollectorRegistry()
    registry.register(CellCollector(cell))
    return registry
