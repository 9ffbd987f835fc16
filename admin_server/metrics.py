"""The figures of a cell for Prometheus, read from the cell at each scrape."""

from __future__ import annotations

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
        wanted = GaugeMetricFamily("sax_admin_wanted_replicas", "Aimed at now", labels=["model"])
        replicas = GaugeMetricFamily(
            "sax_admin_replicas", "Replicas by status", labels=["model", "status"]
        )
        for model in self._cell.models():
            wanted.add_metric([model.spec.model_id], model.wanted)
            statuses = [replica.status for replica in model.replicas]
            for status in sorted({*statuses, ServableStatus.LOADED}):
                replicas.add_metric([model.spec.model_id, status], statuses.count(status))
        yield wanted
        yield replicas

    def _servers(self) -> Iterator[Metric]:
        used = GaugeMetricFamily(
            "sax_admin_server_memory_used_bytes", "As the server tells", labels=["server"]
        )
        total = GaugeMetricFamily(
            "sax_admin_server_memory_total_bytes", "As the server tells", labels=["server"]
        )
        pending = GaugeMetricFamily(
            "sax_admin_server_pending_requests", "Not answered yet", labels=["server"]
        )
        rate = GaugeMetricFamily(
            "sax_admin_server_requests_per_second",
            "In the last minute, by how they ended",
            labels=["server", "outcome"],
        )
        for server in self._cell.servers():
            address, traffic = server.info.address, server.traffic
            pending.add_metric([address], traffic.pending)
            rate.add_metric([address, "success"], traffic.successes_per_second)
            rate.add_metric([address, "error"], traffic.errors_per_second)
            used.add_metric([server.info.address], server.memory_used)
            total.add_metric([server.info.address], server.info.memory_total)
        yield from (used, total, pending, rate)


def registry_of(cell: Cell) -> CollectorRegistry:
    """A registry of this cell alone."""
    registry = CollectorRegistry()
    registry.register(CellCollector(cell))
    return registry
