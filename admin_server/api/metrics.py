"""Prometheus metrics of a cell, read from the cell at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from admin_server.cell.cell import Cell
from admin_server.leadership import AdminRole
from sax.types import ServableStatus

if TYPE_CHECKING:
    from admin_server.provisioning.provisioner import Provisioner


class CellCollector(Collector):
    def __init__(self, role: AdminRole) -> None:
        self._role = role

    def collect(self) -> Iterator[Metric]:
        """A follower only reports that it does not lead."""
        cell = self._role.cell
        yield GaugeMetricFamily(
            "sax_admin_leading", "1 while this admin server leads the cell", float(bool(cell))
        )
        if cell is not None:
            yield from self._totals(cell)
            yield from self._models(cell)
            yield from self._servers(cell)
            if cell.provisioner is not None:
                yield from self._objects(cell.provisioner)

    def _objects(self, provisioner: Provisioner) -> Iterator[Metric]:
        objects = GaugeMetricFamily(
            "sax_admin_kubernetes_objects",
            "JobSets and LeaderWorkerSets by model and state",
            labels=["model", "state"],
        )
        for (model_id, state), number in sorted(provisioner.counts().items()):
            objects.add_metric([model_id, state], number)
        yield objects
        yield CounterMetricFamily(
            "sax_admin_kubernetes_failures",
            "Failed reads and changes of the cluster",
            provisioner.failures,
        )
        yield GaugeMetricFamily(
            "sax_admin_kubernetes_failing",
            "1 while Kubernetes is unavailable for provisioning",
            float(bool(provisioner.trouble)),
        )

    def _totals(self, cell: Cell) -> Iterator[Metric]:
        loop = cell.reconciler
        yield GaugeMetricFamily("sax_admin_models", "Published models", len(cell.models()))
        yield GaugeMetricFamily("sax_admin_servers", "Joined model servers", len(cell.servers()))
        yield CounterMetricFamily("sax_admin_records", "Records written", cell.ledger.sequence)
        yield GaugeMetricFamily(
            "sax_admin_store_failing",
            "1 while no change can be made durable",
            float(cell.ledger.store_health.failing),
        )
        yield GaugeMetricFamily(
            "sax_admin_store_replaced",
            "1 while the store is not the one this leader started with, or lacks its records",
            float(cell.ledger.store_health.replaced),
        )
        yield GaugeMetricFamily(
            "sax_admin_store_foreign_objects",
            "Objects below the cell's folder that no admin server wrote",
            len(cell.ledger.store_health.foreign),
        )
        yield CounterMetricFamily(
            "sax_admin_store_failures",
            "Writes that failed or timed out",
            cell.ledger.store_health.failures,
        )
        yield CounterMetricFamily(
            "sax_admin_disputed_terms",
            "Refusals by model servers for a term that is not in the log",
            cell.disputes.count,
        )
        yield CounterMetricFamily("sax_admin_loads", "Loads done", loop.loads)
        yield CounterMetricFamily("sax_admin_unloads", "Unloads done", loop.unloads)
        yield CounterMetricFamily(
            "sax_admin_failed_actions", "Loads and unloads that failed", loop.failed_actions
        )

    def _models(self, cell: Cell) -> Iterator[Metric]:
        wanted = GaugeMetricFamily(
            "sax_admin_wanted_replicas", "Replicas wanted now", labels=["model"]
        )
        replicas = GaugeMetricFamily(
            "sax_admin_replicas", "Replicas by status", labels=["model", "status"]
        )
        canaries = GaugeMetricFamily(
            "sax_admin_canary_percent",
            "Share of the requests that a canary's version gets",
            labels=["model", "version"],
        )
        ready = GaugeMetricFamily(
            "sax_admin_canary_ready_replicas",
            "Ready replicas with a canary's version",
            labels=["model", "version"],
        )
        for model in cell.models():
            if (canary := model.spec.canary) is not None:
                labels = [model.spec.model_id, canary.version]
                canaries.add_metric(labels, canary.percent)
                ready.add_metric(labels, model.ready_canaries)
            wanted.add_metric([model.spec.model_id], model.wanted)
            statuses = [replica.status for replica in model.replicas]
            for status in sorted({*statuses, ServableStatus.LOADED}):
                replicas.add_metric([model.spec.model_id, status], statuses.count(status))
        yield wanted
        yield replicas
        yield canaries
        yield ready
        yield from self._requests(cell)

    def _requests(self, cell: Cell) -> Iterator[Metric]:
        """The figures the autoscaler uses."""
        queued, running = Counter[str](), Counter[str]()
        for server in cell.servers():
            for servable in server.servables:
                queued[servable.model_id] += servable.queued
                running[servable.model_id] += servable.running
        for name, text, counts in (
            ("sax_admin_queued_requests", "Requests queued at model servers", queued),
            ("sax_admin_running_requests", "Requests running on model servers", running),
            (
                "sax_admin_held_requests",
                "Requests held by clients until a replica is ready",
                cell.held(),
            ),
        ):
            family = GaugeMetricFamily(name, text, labels=["model"])
            for model_id in sorted(cell.ledger.state.models):
                family.add_metric([model_id], counts.get(model_id, 0))
            yield family

    def _servers(self, cell: Cell) -> Iterator[Metric]:
        used = GaugeMetricFamily(
            "sax_admin_server_memory_used_bytes", "As reported by the server", labels=["server"]
        )
        total = GaugeMetricFamily(
            "sax_admin_server_memory_total_bytes", "As reported by the server", labels=["server"]
        )
        pending = GaugeMetricFamily(
            "sax_admin_server_pending_requests", "Requests not answered yet", labels=["server"]
        )
        rate = GaugeMetricFamily(
            "sax_admin_server_requests_per_second",
            "In the last minute, by outcome",
            labels=["server", "outcome"],
        )
        for server in cell.servers():
            address, traffic = server.info.address, server.traffic
            pending.add_metric([address], traffic.pending)
            rate.add_metric([address, "success"], traffic.successes_per_second)
            rate.add_metric([address, "error"], traffic.errors_per_second)
            used.add_metric([server.info.address], server.memory_used)
            total.add_metric([server.info.address], server.info.memory_total)
        yield from (used, total, pending, rate)


def registry_of(role: AdminRole) -> CollectorRegistry:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(CellCollector(role))
    return registry
