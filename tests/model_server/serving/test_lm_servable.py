"""Adapters beside their base: names, counts and ends of their own in one arithmetic engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from model_server.engine.engine import EngineRequest, SequenceUpdate
from model_server.loading.adapters import Bases
from model_server.loading.loaded import Loaded
from model_server.loading.loaded_model import LoadedModel
from model_server.models.weights.low_rank import AdapterRoom
from model_server.serving.servables import Servables
from sax.adapters import parse_base
from sax.errors import LoadFailed, NotLoaded, SaxError
from sax.types import ModelSpec, Progress, ServableInfo, ServableStatus
from tests.model_server.engine.fake_runner import GREEDY
from tests.model_server.fake_model import FakeModels
from tests.model_server.waiting import until

BASE, ADAPTER = "/sax/test/base", "/sax/test/adapter"


class AdaptedModels(FakeModels):
    """Fake models with room for one adapter each; an adapter is a place and no numbers."""

    def __init__(self, delay_s: float, gate: threading.Semaphore | None) -> None:
        super().__init__(delay_s=delay_s, gate=gate)
        self.bases = Bases()

    def __call__(self, spec: ModelSpec, report: Callable[[Progress], None]) -> LoadedModel:
        if spec.model_path == "lora":
            return self.bases.load(spec, parse_base(spec.overrides), report)
        loaded = super().__call__(spec, report)
        assert isinstance(loaded, Loaded)
        self.bases.keep(spec, AdapterRoom(1, 4), loaded, self.runners[-1])
        return loaded


def spec(model_id: str) -> ModelSpec:
    path, overrides = ("fake", {}) if model_id == BASE else ("lora", {"BASE": f'"{BASE}"'})
    return ModelSpec(
        model_id=model_id, model_path=path, checkpoint="None", replicas=1, overrides=overrides
    )


def request(max_tokens: int) -> EngineRequest:
    return EngineRequest(
        prompt=(5, 8), sampling=GREEDY, max_tokens=max_tokens, stop_ids=frozenset()
    )


@asynccontextmanager
async def both(
    delay_s: float = 0.0, drain_s: float = 60.0, gate: threading.Semaphore | None = None
) -> AsyncIterator[Servables]:
    servables = Servables(AdaptedModels(delay_s, gate), drain_s=drain_s)
    try:
        for model_id in (BASE, ADAPTER):
            await servables.load(spec(model_id))
        yield servables
    finally:
        await servables.close()
        assert servables.infos() == ()


def info(servables: Servables, model_id: str) -> ServableInfo:
    return next(each for each in servables.infos() if each.model_id == model_id)


async def test_an_adapter_counts_its_own_requests_and_no_memory() -> None:
    gate = threading.Semaphore(1)
    async with both(gate=gate) as servables:
        base, adapter = servables.get(BASE), servables.get(ADAPTER)
        updates: list[SequenceUpdate] = []
        adapter.submit(request(30), updates.append)
        await until(lambda: bool(updates))
        assert (adapter.running, base.running) == (1, 1)
        assert adapter.memory == 0 < base.memory
        gate.release(1000)
        await until(lambda: updates[-1].finish == "length")
        assert adapter.running == adapter.waiting == 0
        assert adapter.stats().tokens == 30


async def test_an_adapter_that_is_unloaded_ends_its_requests_and_frees_its_place() -> None:
    async with both(delay_s=0.002) as servables:
        theirs: list[SequenceUpdate] = []
        ours: list[SequenceUpdate] = []
        servables.get(BASE).submit(request(60), theirs.append)
        servables.get(ADAPTER).submit(request(20), ours.append)
        await servables.unload(ADAPTER)
        assert len(ours) == 20
        await servables.load(spec("/sax/test/next"))
        with pytest.raises(LoadFailed, match=f"{BASE} has room for 1 adapter .*/sax/test/next"):
            await servables.load(spec(ADAPTER))
        await until(lambda: bool(theirs) and theirs[-1].finish == "length")


async def test_after_the_drain_time_an_adapters_requests_end_with_its_name() -> None:
    async with both(delay_s=0.01, drain_s=0.05) as servables:
        updates: list[SequenceUpdate] = []
        servables.get(ADAPTER).submit(request(400), updates.append)
        await servables.unload(ADAPTER)
        error = updates[-1].error
        assert isinstance(error, NotLoaded)
        assert error.text == f"{ADAPTER} was unloaded before this request was done"
        assert servables.get(BASE).running <= 1  # its slot is given back within a step
        await until(lambda: servables.get(BASE).running == 0)


async def test_without_its_base_an_adapter_fails_by_name_and_comes_back_with_it() -> None:
    async with both(delay_s=0.01, drain_s=0.05) as servables:
        updates: list[SequenceUpdate] = []
        servables.get(ADAPTER).submit(request(400), updates.append)
        await servables.unload(BASE)
        await until(lambda: bool(updates) and updates[-1].error is not None)
        error = updates[-1].error
        assert isinstance(error, SaxError)
        assert f"{ADAPTER}, with its base {BASE}, was unloaded" in error.text
        assert info(servables, ADAPTER).status is ServableStatus.FAILED
        assert info(servables, ADAPTER).reason == f"its base {BASE} was unloaded here"
        with pytest.raises(LoadFailed, match=f"its base {BASE} is not loaded here any more"):
            await servables.load(spec(ADAPTER))
        await servables.load(spec(BASE))
        await servables.load(spec(ADAPTER))
        answered: list[SequenceUpdate] = []
        servables.get(ADAPTER).submit(request(3), answered.append)
        await until(lambda: len(answered) == 3)
        await asyncio.sleep(0)
        assert servables.get(ADAPTER).running == 0
