"""The tutorial's commands for two machines, on two hosts with a network between them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.demo_model import COMPILE_CACHE, ROOT, demo_model
from tests.docs.blocks import Block, blocks
from tests.hosts.network import Host, Network, network

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

PAGE = "docs/tutorial/one_evening.md"
WITHIN_S = 120.0


def commands() -> list[list[str]]:
    """Those of the first machine, of the second, and those that publish a model."""
    section = [block for block in blocks(PAGE) if block.section == "On two machines"]
    return [_lines(block) for block in section]


def _lines(block: Block) -> list[str]:
    return block.text.strip().splitlines()


@contextmanager
def started(net: Network, host: Host, line: str, log: Path) -> Iterator[None]:
    """Run a command of the page on a host, with the hosts' own addresses."""
    for number, each in enumerate(net.hosts, 1):
        line = line.replace(f"10.0.0.{number}:", f"{each.address}:")
        line = re.sub(rf"10\.0\.0\.{number}(?=\s|$)", each.address, line)
    words = shlex.split(line)
    assert words.pop(0) == "python"
    own = [f"--jax_cache_dir={COMPILE_CACHE}"] if "model_server" in words else []
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*net.inside(host), sys.executable, *words, *own],
            cwd=log.parent,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def said(net: Network, *words: str) -> str:
    """What the command line prints on the first machine; an error is a line, too."""
    admin = ("env", f"SAX_ADMIN={net.hosts[0].address}:10000", sys.executable, "-m", "sax.cli")
    done = net.run(net.hosts[0], *admin, *words, timeout_s=WITHIN_S)
    return done.stdout + done.stderr


def until(net: Network, wanted: str, *words: str) -> str:
    """Repeat a command until it prints what is wanted."""
    deadline = time.monotonic() + WITHIN_S
    while wanted not in (text := said(net, *words)):
        assert time.monotonic() < deadline, f"{wanted} not in\n{text}"
        time.sleep(1)
    return text


def test_a_model_with_two_replicas_is_on_both_machines_and_outlives_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (admin, own, gateway), (other,), (export, publish, listing) = commands()
    assert export == "export SAX_ADMIN=10.0.0.1:10000"
    with network(2) as net:
        here, there = net.hosts
        with (
            started(net, here, admin, tmp_path / "admin.log"),
            started(net, here, gateway, tmp_path / "gateway.log"),
            started(net, there, other, tmp_path / "other.log"),
        ):
            with started(net, here, own, tmp_path / "own.log"):
                until(net, there.address, "status")
                until(net, f"{here.address}:10001", "status")
                told = said(net, *publish.replace("CHECKPOINT", str(demo_model())).split()[1:])
                assert "ready" in told, told
                held = said(net, *listing.split()[1:])
                assert here.address in held, held
                assert there.address in held, held
                assert "Paris" in said(net, "generate", "smollm2", "The capital of France is")
            assert "Paris" in said(net, "generate", "smollm2", "The capital of France is")
