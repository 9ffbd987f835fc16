"""Loads, unloads and failures of models in one server, with arithmetic models."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from model_server.engine.engine import EngineRequest, SequenceUpdate
from model_server.serving.servables import Servables
from sax.errors import Cancelled, CheckpointError, LoadFailed, NotLoaded, ShuttingDown
from sax.types import ModelSpec, ServableInfo, ServableStatus
from tests.model_server.engine.fake_runner import GREEDY
from tests.model_server.fake_model import KERNELS, LIMITS, MEMORY, FakeModels
from tests.model_server.waiting import until

A, B = "/sax/test/a", "/sax/test/b"


def spec(
    model_id: str = A, path: str = "fake", checkpoint: str = "None", version: str = ""
) -> ModelSpec:
    return ModelSpec(
        model_id=model_id, model_path=path, checkpoint=checkpoint, replicas=1, version=version
    )


@asynccontextmanager
async def running(models: FakeModels, drain_s: float = 10.0) -> AsyncIterator[Servables]:
    """Servables that end with everything given back."""
    servables = Servables(models, drain_s=drain_s)
    try:
        yield servables
    finally:
        models.release.set()
        await servables.close()
        assert servables.infos() == ()
        assert servables.memory_used == 0
        assert all(runner.closed for runner in models.runners)
        assert not [t for t in threading.enumerate() if t.name == "engine"]


def status_of(servables: Servables, model_id: str = A) -> ServableInfo | None:
    return next((info for info in servables.infos() if info.model_id == model_id), None)


async def test_a_model_is_loaded_served_and_unloaded() -> None:
    async with running(FakeModels()) as servables:
        await servables.load(spec(version="ab" * 16))
        info = status_of(servables)
        assert info is not None
        assert (info.status, info.version, info.memory) == (
            ServableStatus.LOADED,
            "ab" * 16,
            MEMORY,
        )
        assert info.kernels == KERNELS
        assert servables.get(A).model_id == A
        await servables.unload(A)
        with pytest.raises(NotLoaded, match="holds no model"):
            servables.get(A)


async def test_the_log_says_what_saxml_says_when_a_load_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with running(FakeModels()) as servables:
        await servables.load(spec())
    assert f"loading completed. Successfully loaded model for key: {A}" in caplog.text


async def test_two_models_share_a_server_and_their_memory_adds_up() -> None:
    async with running(FakeModels()) as servables:
        await asyncio.gather(servables.load(spec(A)), servables.load(spec(B)))
        assert servables.memory_used == 2 * MEMORY
        await servables.unload(A)
        assert servables.memory_used == MEMORY
        assert servables.get(B).model_id == B


async def test_models_load_one_at_a_time_and_the_second_says_that_it_waits() -> None:
    models = FakeModels()
    async with running(models) as servables:
        first = asyncio.create_task(servables.load(spec(A, "fake.Held")))
        second = asyncio.create_task(servables.load(spec(B)))
        await until(lambda: bool(models.loads))
        waiting = status_of(servables, B)
        assert waiting is not None
        assert waiting.progress is not None
        assert (waiting.status, waiting.progress.phase) == (
            ServableStatus.LOADING,
            "waiting for another load",
        )
        models.release.set()
        await asyncio.gather(first, second)
        assert models.most_concurrent == 1


async def test_progress_shows_while_a_model_loads() -> None:
    models = FakeModels()

    def phase() -> str | None:
        info = status_of(servables)
        return info.progress.phase if info and info.progress else None

    async with running(models) as servables:
        loading = asyncio.create_task(servables.load(spec(path="fake.Held")))
        await until(lambda: phase() == "compiling bucket")
        with pytest.raises(NotLoaded, match="is loading"):
            servables.get(A)
        models.release.set()
        await loading
        assert phase() is None


async def test_loading_the_same_version_again_joins_it() -> None:
    models = FakeModels()
    async with running(models) as servables:
        calls = [asyncio.create_task(servables.load(spec(path="fake.Held"))) for _ in range(3)]
        await until(lambda: bool(models.loads))
        models.release.set()
        await asyncio.gather(*calls)
        await servables.load(spec(path="fake.Held"))
        assert len(models.runners) == 1


async def test_another_version_takes_the_place_of_the_first() -> None:
    models = FakeModels()
    async with running(models) as servables:
        await servables.load(spec(checkpoint="one", version="11" * 16))
        await servables.load(spec(checkpoint="two", version="22" * 16))
        assert models.loads == ["one", "two"]
        assert [runner.closed for runner in models.runners] == [True, False]
        info = status_of(servables)
        assert info is not None
        assert info.version == "22" * 16


@pytest.mark.parametrize(
    ("path", "error", "reason"),
    [
        ("fake.Truncated", CheckpointError, "gone.gguf: tensor lm_head is truncated"),
        ("fake.OutOfMemory", LoadFailed, "cannot allocate 8 GiB"),
        ("fake.Exits", LoadFailed, "SystemExit: 3"),
    ],
)
async def test_whatever_a_loader_raises_the_reason_is_kept_and_the_server_goes_on(
    path: str, error: type[Exception], reason: str
) -> None:
    async with running(FakeModels()) as servables:
        with pytest.raises(error, match=reason):
            await servables.load(spec(path=path, checkpoint="gone.gguf"))
        info = status_of(servables)
        assert info is not None
        assert info.status is ServableStatus.FAILED
        assert reason in info.reason
        assert "Traceback" not in info.reason
        with pytest.raises(NotLoaded, match=reason):
            servables.get(A)
        await servables.load(spec(B))
        assert servables.get(B).model_id == B
        await servables.load(spec(A))
        assert servables.get(A).model_id == A


async def test_an_unload_ends_a_load_under_way() -> None:
    models = FakeModels()
    async with running(models) as servables:
        loading = asyncio.create_task(servables.load(spec(path="fake.Held")))
        await until(lambda: bool(models.loads))
        await servables.unload(A)
        with pytest.raises(Cancelled):
            await loading
        assert servables.infos() == ()
        assert models.runners == []


async def test_a_load_goes_on_when_its_caller_goes_away() -> None:
    models = FakeModels()
    async with running(models) as servables:
        loading = asyncio.create_task(servables.load(spec(path="fake.Held")))
        await until(lambda: bool(models.loads))
        loading.cancel()
        models.release.set()
        await servables.load(spec(path="fake.Held"))
        assert len(models.runners) == 1


async def test_the_last_wish_wins() -> None:
    models = FakeModels()
    async with running(models) as servables:
        wishes = [
            asyncio.create_task(servables.load(spec(path="fake.Held", checkpoint="one"))),
            asyncio.create_task(servables.unload(A)),
            asyncio.create_task(servables.load(spec(path="fake.Held", checkpoint="two"))),
            asyncio.create_task(servables.load(spec(checkpoint="three"))),
        ]
        outcomes = await asyncio.gather(*wishes, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes[:3]] == [Cancelled] * 3
        assert outcomes[3] is None
        assert servables.spec(A).checkpoint == "three"
        assert sum(not runner.closed for runner in models.runners) == 1


def engine_request(max_tokens: int) -> EngineRequest:
    return EngineRequest(
        prompt=(5, 8), sampling=GREEDY, max_tokens=max_tokens, stop_ids=frozenset()
    )


async def test_an_unload_lets_running_sequences_end() -> None:
    async with running(FakeModels(delay_s=0.002)) as servables:
        await servables.load(spec())
        updates: list[SequenceUpdate] = []
        servables.get(A).submit(engine_request(50), updates.append)
        unloading = asyncio.create_task(servables.unload(A))
        await asyncio.sleep(0)
        with pytest.raises(NotLoaded, match="is unloading"):
            servables.get(A)
        await unloading
        assert len(updates) == 50
        assert updates[-1].finish == "length"


async def test_after_the_drain_time_running_sequences_end_with_an_error() -> None:
    async with running(FakeModels(delay_s=0.01), drain_s=0.05) as servables:
        await servables.load(spec())
        updates: list[SequenceUpdate] = []
        servables.get(A).submit(engine_request(LIMITS.max_context - 2), updates.append)
        await servables.unload(A)
        assert isinstance(updates[-1].error, NotLoaded)
        assert len(updates) < LIMITS.max_context - 2


async def test_a_model_whose_engine_stopped_has_failed_and_can_be_loaded_again() -> None:
    models = FakeModels(fail_result=3)
    async with running(models) as servables:
        await servables.load(spec())
        updates: list[SequenceUpdate] = []
        servables.get(A).submit(engine_request(50), updates.append)
        await until(lambda: bool(updates) and updates[-1].error is not None)
        info = status_of(servables)
        assert info is not None
        assert info.status is ServableStatus.FAILED
        assert "RunnerBroke: result 3" in info.reason
        await until(lambda: servables.memory_used == 0)
        await servables.load(spec())
        assert [runner.closed for runner in models.runners] == [True, False]


async def test_a_server_that_closes_loads_nothing() -> None:
    async with running(FakeModels()) as servables:
        await servables.load(spec())
        await servables.close()
        with pytest.raises(ShuttingDown):
            await servables.load(spec(B))


async def test_unloading_what_is_not_here_changes_nothing() -> None:
    async with running(FakeModels()) as servables:
        await servables.unload(A)
        assert servables.infos() == ()
