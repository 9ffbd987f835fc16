"""ModelServerMetrics: what a scraper of a model server reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, ProcessCollector

from model_server.serving.metrics.engine_figures import EngineFigures
from model_server.serving.metrics.request_tally import RequestTallies, RequestTally
from model_server.serving.metrics.vllm_names import WithVllmNames
from model_server.serving.servable import Servable


class ModelServerMetrics:
    """The registry of a model server, and the tallies that its requests feed."""

    def __init__(
        self,
        servables: Callable[[], Iterable[Servable]],
        compiles_while_serving: Callable[[], int],
        *,
        vllm_names: bool = True,
    ) -> None:
        self._tallies = RequestTallies()
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        ours = (EngineFigures(servables, compiles_while_serving), self._tallies)
        for each in (WithVllmNames(ours),) if vllm_names else ours:
            self.registry.register(each)

    def tally(self, model_id: str) -> RequestTally:
        """Return what the requests of a model are counted in."""
        return self._tallies.of(model_id)
