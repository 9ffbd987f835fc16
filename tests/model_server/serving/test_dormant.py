"""A model with fewer islands than it should have: the flags say if requests are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from model_server.engine.islands.island_runner import IslandRunner
from model_server.loading.island_loads import IslandLoads
from model_server.loading.loaded import Loaded
from model_server.loading.loaded_model import LoadedModel
from sax.errors import ReplicaLost
from sax.proto import modelet_pb2
from sax.types import ModelSpec, Progress
from sax.wire.servers import decode_status
from tests.model_server.engine.fake_runner import FakeRunner
from tests.model_server.fake_model import FakeModels
from tests.model_server.fake_server import MODEL, Served, error_of, lm_request, serving
from tests.model_server.waiting import until


class Held(FakeRunner):
    """Closed by whoever notices first that its island is gone."""

    def close(self) -> None:
        if not self.closed:
            super().close()


class IslandModels(FakeModels):
    """Arithmetic on two islands, both of which are needed; those in `gone` do not answer."""

    gone: frozenset[int] = frozenset()

    def __call__(self, spec: ModelSpec, report: Callable[[Progress], None]) -> LoadedModel:
        loaded = super().__call__(spec, report)
        assert isinstance(loaded, Loaded)
        held = [Held(self.limits) for _ in range(2)]
        self.runners[-1:] = held
        runners: Any = {(number,): IslandRunner(one) for number, one in enumerate(held)}  # pyright: ignore
        islands = IslandLoads(
            spec.model_id, self._again, lambda island: island not in self.gone, runners, elastic=0
        )
        return replace(loaded, runner=held[0], islands=islands)

    def _again(self, copy: tuple[int, ...]) -> IslandRunner:
        raise RuntimeError(f"island {copy} does not come back")


async def asleep(served: Served, models: IslandModels) -> None:
    """Lose an island, and return once the server knows."""
    assert served.servable().computes
    models.gone = frozenset({1})
    await until(lambda: not served.servable().computes)


async def test_requests_are_refused_early_and_counted_if_the_flags_say_so() -> None:
    models = IslandModels()
    async with serving(models, early_reject_on_dormant=True) as served:
        assert (await served.lm.Generate(lm_request())).texts[0].text
        await asleep(served, models)
        error = await error_of(served.lm.Generate(lm_request()))
        assert isinstance(error, ReplicaLost)
        assert error.text.startswith(f"{MODEL} is dormant here: 1 of 2 islands lost")
        reply = await served.modelet.GetStatus(modelet_pb2.GetStatusRequest())
        assert decode_status(reply).dormant
        assert reply.server_status.stats.early_rejection_errors_per_second > 0


async def test_the_islands_that_are_left_answer_by_default() -> None:
    models = IslandModels()
    async with serving(models) as served:
        await asleep(served, models)
        assert (await served.lm.Generate(lm_request())).texts[0].text


async def test_a_server_with_its_islands_is_awake() -> None:
    async with serving(IslandModels()) as served:
        reply = await served.modelet.GetStatus(modelet_pb2.GetStatusRequest())
        assert not decode_status(reply).dormant
