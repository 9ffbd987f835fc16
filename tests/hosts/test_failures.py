"""A host that dies, freezes or is cut off is named within seconds, and nobody waits for it.

Every run kills one in test_layouts.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sax.errors import ReplicaLost
from sax.types import SamplingParams
from tests.hosts.asking import SHRUNK, SPMD, load, tokens
from tests.hosts.gang import Gang
from tests.hosts.network import network

pytestmark = [pytest.mark.timeout(600), pytest.mark.nightly]

MODEL = "/sax/test/spmd"
FLAGS = ("--slots=2", "--max_context=4096", "--page_size=64", "--cpu_devices=1")
LONG = SamplingParams(temperature=1.0, seed=1, max_tokens=4000, ignore_eos=True)
LOST, HUNG = 75, 70


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Gang]:
    """Two hosts with a model."""
    with Gang(tmp_path, *FLAGS, count=2) as gang:
        with_model(gang)
        yield gang


def with_model(gang: Gang) -> None:
    gang.wait_until_serving()
    load(gang.address, MODEL, SPMD, **SHRUNK, MAX_CONTEXT=4096)


def while_streaming(gang: Gang, trouble: Callable[[], None]) -> list[Any]:
    """What streams that run into trouble end with."""
    ended: list[Any] = []

    def stream() -> None:
        ended.extend(tokens(gang.address, MODEL, LONG, LONG, LONG))  # one of them waits

    asking = threading.Thread(target=stream)
    asking.start()
    time.sleep(1.5)
    trouble()
    asking.join(60)
    assert not asking.is_alive(), "a stream hangs"
    return ended


def check_lost(gang: Gang, ended: list[Any], host: int) -> None:
    """Every stream ended with the host's name, and so did every process that lives."""
    name = f"host {host} ({gang.names[host]})"
    assert all(isinstance(error, ReplicaLost) and name in error.text for error in ended), ended
    others = [each for each in range(gang.count) if each != host]
    assert [gang.exit_code(each) for each in others] == [LOST] * len(others)
    assert f"{name} of this replica is lost" in gang.logs(0)


def test_a_host_that_is_killed_is_named_and_the_replica_can_start_again(pair: Gang) -> None:
    check_lost(pair, while_streaming(pair, lambda: pair.kill(1)), 1)
    pair.start()
    with_model(pair)
    short = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    assert len(tokens(pair.address, MODEL, short)[0]) == 4


def test_a_host_that_is_frozen_is_named(pair: Gang) -> None:
    check_lost(pair, while_streaming(pair, lambda: pair.pause(1)), 1)
    pair.resume(1)
    assert pair.exit_code(1) == LOST  # it finds the primary gone


def test_a_primary_that_is_killed_takes_the_others_with_it(pair: Gang) -> None:
    ended = while_streaming(pair, lambda: pair.kill(0))
    assert all(isinstance(error, ReplicaLost) for error in ended), ended
    assert pair.exit_code(1) == LOST
    assert "host 0 (127.0.0.1), the primary, is lost" in pair.logs(1)


def test_a_device_that_hangs_ends_the_replica_by_name(tmp_path: Path) -> None:
    """The other host answers heartbeats all the time: only the watchdog sees that nothing moves."""
    hangs = tmp_path / "hangs"
    flags = (*FLAGS, "--step_timeout_seconds=3", "--import=tests.hosts.hung_device")
    with Gang(tmp_path, *flags, count=2, environment={"SAX_TEST_HANGS": str(hangs)}) as gang:
        with_model(gang)
        ended = while_streaming(gang, hangs.touch)
        assert all(isinstance(error, ReplicaLost) for error in ended), ended
        assert all("did not finish within" in error.text for error in ended)
        assert all("host 1 (127.0.0.1)" in error.text for error in ended)
        assert [gang.exit_code(0), gang.exit_code(1)] == [HUNG, LOST]
        assert "in _loop" in gang.logs(0)
        assert "did not finish within" in gang.logs(1)


def test_running_streams_end_in_peace_when_a_host_is_told_to_stop(pair: Gang) -> None:
    some = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    ended: list[Any] = []
    asking = threading.Thread(target=lambda: ended.extend(tokens(pair.address, MODEL, some)))
    asking.start()
    time.sleep(0.7)
    pair.terminate(1)
    asking.join(60)
    assert [len(each) for each in ended] == [60]
    assert [pair.exit_code(host) for host in (0, 1)] == [0, 0]


def test_a_host_that_is_cut_off_is_named_on_both_sides(tmp_path: Path) -> None:
    with network(3) as wire:
        flags = (*FLAGS, "--host_timeout_seconds=3")
        with Gang(tmp_path, *flags, count=2, network=wire) as gang:
            with_model(gang)
            ended = while_streaming(gang, lambda: gang.cut(1))
            check_lost(gang, ended, 1)
            assert gang.exit_code(1) == LOST
            assert "the primary, is lost" in gang.logs(1)
            gang.heal(1)
            gang.start()
            with_model(gang)


def test_packets_that_are_lost_cost_time_and_nothing_else(tmp_path: Path) -> None:
    with network(3) as wire, Gang(tmp_path, *FLAGS, count=2, network=wire) as gang:
        with_model(gang)
        wire.lose(wire.hosts[1], 5)
        some = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
        assert len(tokens(gang.address, MODEL, some)[0]) == 30
        wire.heal(wire.hosts[1])


def test_a_load_that_loses_a_host_ends_with_its_name(tmp_path: Path) -> None:
    with Gang(tmp_path, *FLAGS, count=2) as gang:
        gang.wait_until_serving()
        gang.pause(1)
        with pytest.raises(ReplicaLost, match=r"host 1 \(127.0.0.1\)"):
            load(gang.address, MODEL, SPMD, **SHRUNK)
        assert gang.exit_code(0) == LOST
