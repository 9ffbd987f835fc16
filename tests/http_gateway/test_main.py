"""The process: flags, the port it tells, and its end."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from http_gateway.__main__ import parse_flags
from http_gateway.config import GatewayConfig

# A gateway process whose cell holds the second token back until the process is told to end.
HOLDING = """
import asyncio, logging, signal
from http_gateway import __main__ as gateway
from http_gateway.config import GatewayConfig
from tests.http_gateway.fake_cell import FakeCell, published

async def run():
    cell = FakeCell(published())
    cell.hold_after = 1
    class Server(gateway.Server):
        def handle_exit(self, sig, frame):
            super().handle_exit(sig, frame)
            cell.release()
    gateway.Server = Server
    await gateway.serve(cell, GatewayConfig(port=0))

logging.basicConfig(level=logging.INFO)
asyncio.run(run())
"""


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process and the address that its log tells."""
    process = subprocess.Popen(
        [sys.executable, *arguments], stderr=subprocess.PIPE, text=True, env={**os.environ}
    )
    assert process.stderr is not None
    try:
        log = ""
        for line in process.stderr:
            log += line
            if found := re.search(r"gateway listening on (http://127\.0\.0\.1:\d+)", line):
                yield process, found[1]
                return
        raise AssertionError(log)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_flags_become_the_configuration():
    assert parse_flags([]) == GatewayConfig()
    flags = ["--host", "0.0.0.0", "--port", "0", "--admin", "h:1", "--saxml_generation", "1"]
    more = ["--request_timeout_s", "1.5", "--max_body_bytes", "10", "--max_held_requests", "7"]
    assert parse_flags([*flags, *more]) == GatewayConfig(
        host="0.0.0.0",
        port=0,
        admin="h:1",
        saxml_generation=1,
        request_timeout_s=1.5,
        max_body_bytes=10,
        max_held_requests=7,
    )


@pytest.mark.parametrize("flags", ["--port 70000", "--saxml_generation 3", "--max_body_bytes 0"])
def test_a_wrong_flag_is_told_by_name(flags: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        parse_flags(flags.split())
    assert ended.value.code == 2
    assert flags.split()[0] in capsys.readouterr().err


def test_help_teaches(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        parse_flags(["--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert "/v1/chat/completions" in told
    assert "curl" in told


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_the_process_tells_its_port_lives_without_an_admin_and_ends_with_0(by: signal.Signals):
    flags = ["-m", "http_gateway", "--port", "0", "--admin", "127.0.0.1:1"]
    with started(*flags) as (process, url):
        assert httpx.get(f"{url}/healthz").status_code == 200
        ready = httpx.get(f"{url}/readyz", timeout=30)
        assert (ready.status_code, ready.json()["status"]) == (503, "not ready")
        process.send_signal(by)
        assert process.wait(30) == 0


def test_a_running_stream_is_finished_before_the_process_ends():
    with started("-c", HOLDING) as (process, url):
        body = {"model": "smollm2", "prompt": "x", "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=30) as answer:
            lines = answer.iter_lines()
            assert '"text":" 1"' in next(lines)
            process.send_signal(signal.SIGTERM)
            assert list(lines)[-2:] == ["data: [DONE]", ""]
        assert process.wait(30) == 0
