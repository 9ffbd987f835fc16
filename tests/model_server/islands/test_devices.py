from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import jax
import pytest

from model_server.config import ModelServerConfig
from model_server.flags import make_config
from model_server.islands.devices import island_devices, islands
from model_server.islands.proxy_backend import BACKEND
from model_server.loading.island_loads import IslandLoads
from sax.errors import Unavailable
from tests.model_server.engine.fake_runner import FakeRunner
from tests.model_server.engine.test_engine import LIMITS


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


@pytest.mark.parametrize("wrong", ["1,1", "-1", "a", ""])
def test_islands_that_are_no_numbers_are_refused(
    wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        make_config([f"--islands={wrong}"])
    assert "--islands" in capsys.readouterr().err


@pytest.mark.parametrize(("elastic", "least"), [(None, 1), (0, 3), (1, 2), (2, 1), (9, 1)])
def test_readiness_asks_for_all_islands_but_the_elastic_ones(
    elastic: int | None, least: int
) -> None:
    runners = {number: FakeRunner(LIMITS) for number in range(3)}
    loads = IslandLoads("/sax/test/m", lambda _: runners[0], lambda _: True, runners, elastic)
    assert loads.least == least
    loads.close()


def test_fewer_than_no_elastic_islands_are_refused() -> None:
    with pytest.raises(ValueError, match="give 0 or more"):
        ModelServerConfig(elastic_slices=-1)
