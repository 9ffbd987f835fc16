"""A pipeline of real processes, joined by ZeroMQ: planned, loaded, warmed and played as served."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from model_server.loading.stages.place import place_of
from tests.processes import on_devices

ROOT = Path(__file__).parents[3]


class Host:
    """One process, and the lines it says."""

    def __init__(self, ordinal: int, devices: int, arguments: list[str]) -> None:
        environment = on_devices(devices) | {
            "JAX_ENABLE_COMPILATION_CACHE": "false",  # programs are sent to the other host
        }
        command = [sys.executable, "-m", "tests.model_server.multihost.stage_host", str(ordinal)]
        self.process = subprocess.Popen(
            [*command, *arguments],
            env=environment,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def says(self) -> dict[str, Any]:
        for line in _there(self.process.stdout):
            if line.startswith("{"):  # Gloo says how many peers it has, there too
                return json.loads(line)
        pytest.fail("a host ended; its reason is on stderr")

    def tell(self, **said: Any) -> None:
        pipe = _there(self.process.stdin)
        pipe.write(json.dumps(said) + "\n")
        pipe.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def _there(pipe: IO[str] | None) -> IO[str]:
    assert pipe
    return pipe


@pytest.fixture
def closes() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def play_on(
    closes: ExitStack, *, hosts: int, stages: int, case: str, devices: int, together: bool
) -> dict[str, Any]:
    """What the primary's steps gave, and what the whole model gives."""
    arguments = [str(hosts), str(stages), case, *([_free_address()] if together else [])]
    started = [Host(ordinal, devices, arguments) for ordinal in range(hosts)]
    for host in started:
        closes.callback(host.end)
    offered = [host.says() for host in started]
    assert all(each["limits"] == offered[0]["limits"] for each in offered)
    for ordinal, host in enumerate(started):
        following = place_of(hosts, ordinal, stages).next
        host.tell(offer=offered[following]["offer"], limits=offered[0]["limits"])
    built = [host.says()["built"] for host in started]
    assert max(built) < sum(built) / stages * 1.5  # each stage holds its own weights only
    for host in started:
        host.tell(go=True)
    said = [host.says() for host in started]
    assert [host.process.wait(60) for host in started] == [0] * hosts
    return said[0]


def check(said: dict[str, Any]) -> None:
    assert said["staged"]["tokens"] == said["whole"]["tokens"]
    np.testing.assert_allclose(
        said["staged"]["numbers"], said["whole"]["numbers"], rtol=1e-4, atol=1e-4
    )


@pytest.mark.nightly
def test_two_processes_give_the_tokens_of_one(closes: ExitStack) -> None:
    check(play_on(closes, hosts=2, stages=2, case="lm_cloud", devices=1, together=False))


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_two_processes_of_two_devices_each_do_too(closes: ExitStack) -> None:
    check(play_on(closes, hosts=2, stages=2, case="mixtral", devices=2, together=False))


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", ["lm_cloud", "deepseek_v3"])
def test_three_processes_do_too(closes: ExitStack, case: str) -> None:
    check(play_on(closes, hosts=3, stages=3, case=case, devices=1, together=False))


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", ["lm_cloud", "mixtral"])
def test_two_stages_of_two_hosts_each_do_too(closes: ExitStack, case: str) -> None:
    """Tensor parallelism crosses hosts inside a stage; nothing but the links crosses stages."""
    check(play_on(closes, hosts=4, stages=2, case=case, devices=1, together=True))


def _free_address() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"
