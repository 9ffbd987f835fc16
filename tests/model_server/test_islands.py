from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from model_server.config import ModelServerConfig
from model_server.engine.islands.island_runner import IslandRunner
from model_server.flags.command_line import make_config
from model_server.islands import (
    BACKEND,
    LATE_NS,
    Copy,
    copies,
    island_devices,
    islands,
    late_timers,
)
from model_server.loading.island_loads import IslandLoads
from sax.errors import InvalidRequest, Unavailable
from tests.model_server.engine.fake_runner import FakeRunner
from tests.model_server.engine.test_engine import LIMITS

_GET = 30  # PR_GET_TIMERSLACK


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three islands of two devices."""
    devices = [SimpleNamespace(id=id, slice_index=id // 2) for id in range(6)]
    monkeypatch.setenv("JAX_PLATFORMS", "proxy")
    monkeypatch.setattr(jax, "devices", lambda: devices)
    yield
    BACKEND.chosen = ()


def numbers() -> dict[int, list[int]]:
    return {number: [each.id for each in devices] for number, devices in islands().items()}


def test_devices_are_grouped_by_the_island_that_they_are_on(proxied: None) -> None:
    assert numbers() == {0: [0, 1], 1: [2, 3], 2: [4, 5]}
    assert [each.id for each in island_devices()] == [0, 1]


def test_a_server_computes_on_the_islands_that_it_is_told(proxied: None) -> None:
    BACKEND.chosen = make_config(["--islands", "2,1"]).islands
    assert list(numbers()) == [2, 1]
    assert [each.id for each in island_devices()] == [4, 5]
    BACKEND.chosen = (1, 7)
    with pytest.raises(Unavailable, match=r"no island 7: name some of \[0, 1, 2\]"):
        islands()


def test_islands_that_are_no_numbers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("1,1", "-1", "a", ""):
        with pytest.raises(SystemExit):
            make_config([f"--islands={wrong}"])
        assert "--islands" in capsys.readouterr().err, wrong


def test_readiness_asks_for_all_islands_but_the_elastic_ones() -> None:
    for elastic, least in ((None, 1), (0, 3), (1, 2), (2, 1), (9, 1)):
        loads = loads_of([(0,), (1,), (2,)], elastic)
        names = list(loads.lanes)
        enough = [loads.suffice(names[:count]) for count in range(4)]
        assert enough == [count >= least for count in range(4)], elastic
        loads.close()


def loads_of(held: list[Copy], elastic: int | None = None) -> IslandLoads:
    def load(copy: Copy) -> IslandRunner:
        return IslandRunner(FakeRunner(LIMITS), [FakeRunner(LIMITS) for _ in copy[1:]])

    runners = {copy: load(copy) for copy in held}
    return IslandLoads("/sax/test/m", load, lambda _: True, runners, elastic)


def test_stages_divide_the_islands_among_copies_of_the_model(proxied: None) -> None:
    assert copies(1) == [(0,), (1,), (2,)]
    assert copies(2) == [(0, 1)]  # the third can hold no whole copy
    with pytest.raises(InvalidRequest, match="NUM_STAGES is 4 and there are 3 islands"):
        copies(4)


def test_islands_that_hold_a_copy_together_are_lost_and_return_together() -> None:
    loads = loads_of([(0, 1), (2, 3)])
    assert {name: len(lanes) for name, lanes in loads.lanes.items()} == {"0+1": 2, "2+3": 2}
    assert loads.lost_of(["0+1"]) == 2
    assert loads.suffice(["2+3"])
    assert not loads.suffice([])
    before, back = loads.lanes["2+3"], SimpleQueue[tuple[Any, ...]]()
    loads.lost("2+3", lambda *told: back.put(told), lambda: None)
    name, *lanes = back.get(timeout=60)
    assert (name, lanes) == ("2+3", list(loads.lanes["2+3"]))
    assert all(lane.closed for lane in before)
    assert not any(lane.closed for lane in lanes)
    loads.close()
    assert all(lane.closed for lane in lanes)


def test_fewer_than_no_elastic_islands_are_refused() -> None:
    with pytest.raises(ValueError, match="give 0 or more"):
        ModelServerConfig(elastic_slices=-1)


def slack_ns() -> int:
    return ctypes.CDLL(None).prctl(_GET)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl is Linux's")
def test_threads_that_begin_inside_may_be_late_and_nobody_else() -> None:
    before = slack_ns()
    found: list[int] = []
    with late_timers():
        inside = threading.Thread(target=lambda: found.append(slack_ns()))
        inside.start()
    inside.join()
    outside = threading.Thread(target=lambda: found.append(slack_ns()))
    outside.start()
    outside.join()
    assert found == [LATE_NS, before]
    assert slack_ns() == before
