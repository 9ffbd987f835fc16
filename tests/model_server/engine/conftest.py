"""Conservation laws: what an engine test took, it must have given back."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from model_server.engine.engine import Engine, SequenceUpdate
from model_server.engine.types import Hypothesis, RowResult
from sax.errors import SaxError
from tests.model_server.engine.fake_runner import FakeRunner


class Inbox:
    """What a test's engine delivered, by sequence; lets a test wait for it."""

    def __init__(self) -> None:
        self.results: dict[int, list[RowResult]] = {}
        self.ends: dict[int, str | SaxError] = {}
        self.hypotheses: dict[int, tuple[Hypothesis, ...]] = {}  # of beam searches
        self.updates: list[SequenceUpdate] = []  # in order
        self._changed = threading.Condition()

    def deliver(self, updates: list[SequenceUpdate]) -> None:
        assert updates, "an empty delivery"
        with self._changed:
            for update in updates:
                self._take(update)
            self._changed.notify_all()

    def _take(self, update: SequenceUpdate) -> None:
        assert update.sequence not in self.ends, "an update came after the last"
        self.updates.append(update)
        self.results.setdefault(update.sequence, []).append(update.result)
        end = update.finish or update.error
        if end:
            self.hypotheses[update.sequence] = update.hypotheses
            self.ends[update.sequence] = end

    def wait(self, holds: Callable[[], bool]) -> None:
        """Until `holds` is true; 30 s without is a failure."""
        with self._changed:
            assert self._changed.wait_for(holds, 60), "it never came to pass"

    def end(self, sequence: int) -> str | SaxError:
        """How a sequence ended, once it has."""
        self.wait(lambda: sequence in self.ends)
        return self.ends[sequence]

    def tokens(self, sequence: int) -> list[int]:
        results = self.results.get(sequence, [])
        return [result.token for result in results if result.token is not None]


Start = Callable[[FakeRunner], tuple[Engine, Inbox]]


@pytest.fixture(autouse=True, scope="module")
def _strict_promotion(request: pytest.FixtureRequest) -> None:
    """Applies to every test of this folder that has jax: most have arithmetic in its place."""
    if "jax" in sys.modules:
        request.getfixturevalue("strict_promotion")


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts engines, and checks after the test that every one gave everything back."""
    started: list[tuple[Engine, Inbox, FakeRunner]] = []
    threads = set(threading.enumerate())

    def start_one(runner: FakeRunner) -> tuple[Engine, Inbox]:
        inbox = Inbox()
        engine = Engine(runner, inbox.deliver)
        started.append((engine, inbox, runner))
        return engine, inbox

    yield start_one
    for engine, inbox, runner in started:
        if runner.gate:
            runner.gate.release(10_000)
        engine.close()
        stats = engine.stats()
        assert (stats.running, stats.waiting, stats.slots_used, stats.pages_used) == (0, 0, 0, 0)
        assert set(inbox.results) == set(inbox.ends), "a sequence was never answered"
        assert len(inbox.ends) >= stats.finished + stats.cancelled, "an end was not delivered"
        assert runner.closed
    assert not set(threading.enumerate()) - threads, "a thread is left"
