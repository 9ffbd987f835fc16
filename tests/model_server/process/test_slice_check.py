"""The smoke test of a slice, as real processes with devices that a CPU pretends to have."""

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.demo_model import ROOT
from tests.end_to_end.cell import free_ports

HOSTS, DEVICES = 2, 2


def check(environment: dict[str, str], *flags: str) -> subprocess.Popen[str]:
    """One host."""
    devices = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(DEVICES), "NPROC": "16"}
    return subprocess.Popen(
        [sys.executable, "-m", "model_server.slice_check", *flags],
        cwd=ROOT,
        env={**os.environ, **devices, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcomes(hosts: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    said = [host.communicate(timeout=280)[0] for host in hosts]
    return [(host.returncode, text) for host, text in zip(hosts, said, strict=True)]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("expected", "status"), [pytest.param(HOSTS * DEVICES, 0, marks=pytest.mark.nightly), (32, 1)]
)
def test_all_hosts_of_an_indexed_job_count_the_same_devices(expected: int, status: int) -> None:
    """With the variables that the pods of the example have."""
    (port,) = free_ports(1)
    found = outcomes(
        [
            check(
                {
                    "SAX_HOSTS": str(HOSTS),
                    "SAX_PRIMARY": "127.0.0.1",
                    "JOB_COMPLETION_INDEX": str(index),
                },
                f"--expect={expected}",
                f"--port={port}",
            )
            for index in range(HOSTS)
        ]
    )
    assert [code for code, _ in found] == [status] * HOSTS, found
    for index, (_, text) in enumerate(found):
        assert f"host {index} of {HOSTS}: jax.device_count() is {HOSTS * DEVICES}" in text
        assert ("32 devices were expected" in text) == bool(status)


@pytest.mark.extended
def test_hosts_that_nothing_tells_of_are_refused_in_words() -> None:
    [(status, text)] = outcomes([check({"SAX_HOSTS": "2"})])
    assert status == 2
    assert "nothing says which of them this is" in text
