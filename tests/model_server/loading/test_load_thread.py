"""Loads on a thread: whatever ends one, its memory is held by a caller or free."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from model_server.loading.load_thread import LoadThread
from model_server.loading.loaded_model import LoadedModel
from sax.errors import Cancelled, LoadFailed
from sax.types import ModelSpec, Progress
from tests.model_server.fake_batched import fake_embedder
from tests.model_server.fake_server import until

SPEC = ModelSpec(model_id="/sax/test/m", model_path="fake", checkpoint="None", replicas=1)


class Loads:
    """A loader that waits before it returns; remembers what it loaded."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.began = threading.Event()
        self.loaded: LoadedModel | None = None

    def __call__(self, spec: ModelSpec, report: Callable[[Progress], None]) -> LoadedModel:
        report(Progress("reading weights"))
        self.began.set()
        assert self.go_on.wait(60)
        self.loaded = fake_embedder(threading.Event())
        return self.loaded


async def test_progress_comes_before_the_model() -> None:
    loads, told = Loads(), list[str]()
    loads.go_on.set()
    outcome = await LoadThread(loads, SPEC, lambda progress: told.append(progress.phase)).run()
    assert outcome is loads.loaded
    assert told == ["reading weights"]


async def test_an_exit_in_a_loader_is_an_error_of_the_load() -> None:
    def leaves(spec: ModelSpec, report: Callable[[Progress], None]) -> LoadedModel:
        raise SystemExit(3)

    outcome = await LoadThread(leaves, SPEC, lambda progress: None).run()
    assert isinstance(outcome, LoadFailed)


async def test_a_cancelled_load_frees_what_it_still_returns() -> None:
    loads = Loads()
    load = LoadThread(loads, SPEC, lambda progress: None)
    running = asyncio.create_task(load.run())
    await asyncio.to_thread(loads.began.wait, 30)
    load.cancel()
    loads.go_on.set()
    assert isinstance(await running, Cancelled)
    assert loads.loaded is not None
    assert loads.loaded.runner.closed


async def test_a_load_whose_waiter_is_gone_frees_what_it_returns() -> None:
    loads = Loads()
    running = asyncio.create_task(LoadThread(loads, SPEC, lambda progress: None).run())
    await asyncio.to_thread(loads.began.wait, 30)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    loads.go_on.set()
    await until(lambda: loads.loaded is not None and loads.loaded.runner.closed)
