"""The gang harness with one host: it starts, hurts and buries real processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.hosts.gang import Gang
from tests.hosts.network import network

pytestmark = pytest.mark.nightly  # of the nightly tests' own tool


def test_a_host_is_killed_started_again_stopped_and_drained(tmp_path: Path) -> None:
    with Gang(tmp_path) as gang:
        gang.wait_until_serving()
        first = gang.pid(0)
        gang.kill(0)
        assert gang.exit_code(0) == -9
        assert not gang.alive(0)
        gang.start(0)
        gang.wait_until_serving()
        assert gang.pid(0) != first
        assert gang.logs(0).count("model server listening on " + gang.address) == 2
        gang.pause(0)
        assert not gang.is_serving()
        assert gang.alive(0)
        gang.resume(0)
        gang.wait_until_serving()
        gang.terminate(0)
        assert gang.exit_code(0) == 0


def test_a_stopped_host_does_not_outlive_its_gang(tmp_path: Path) -> None:
    with Gang(tmp_path) as gang:
        gang.pause(0)
        pid = gang.pid(0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    gang.close()  # as often as one likes


def test_a_host_that_dies_is_told_with_its_log(tmp_path: Path) -> None:
    with Gang(tmp_path, "--slots=none") as gang:
        with pytest.raises(AssertionError, match=r"hosts \[0\] died(?s:.*)--slots"):
            gang.wait_until_serving()
        assert gang.exit_code(0) == 2


def test_a_host_in_a_network_is_cut_off_and_healed(tmp_path: Path) -> None:
    with network(1) as net, Gang(tmp_path, network=net) as gang:
        assert gang.names == [net.hosts[0].address]
        gang.wait_until_serving()
        gang.cut(0)
        assert not gang.is_serving()
        assert gang.alive(0)
        gang.heal(0)
        gang.wait_until_serving()


def test_a_gang_without_a_network_is_not_cut(tmp_path: Path) -> None:
    with Gang(tmp_path) as gang, pytest.raises(AssertionError, match="no network"):
        gang.cut(0)
