"""The process: flags, the port it tells, and its end."""

import json
import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import trustme

from sax.auth.key_limits import KeyLimits
from sax.auth.token_file import new_token, token_line
from tests.identities import Identities

# A gateway process whose cell holds the second token back until the process is told to end.
HOLDING = """
import asyncio, logging, signal
from http_gateway import __main__ as gateway
from http_gateway.config import GatewayConfig
from tests.http_gateway.fake_cell import FakeCell, published

async def run():
    cell = FakeCell(published())
    cell.hold_after = 1
    class Server(gateway.GatewayServer):
        def handle_exit(self, sig, frame):
            super().handle_exit(sig, frame)
            cell.release()
    gateway.GatewayServer = Server
    await gateway.serve(cell, GatewayConfig(port=0))

logging.basicConfig(level=logging.INFO)
asyncio.run(run())
"""


@contextmanager
def started(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process and the address that its log tells."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    assert process.stderr is not None
    try:
        log = ""
        for line in process.stderr:
            log += line
            if found := re.search(r"gateway listening on (https?://127\.0\.0\.1:\d+)", line):
                yield process, found[1]
                return
        raise AssertionError(log)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.extended
def test_with_a_certificate_it_serves_https_and_with_tokens_it_asks_for_them(tmp_path: Path):
    authority, people = trustme.CA(), Identities(tmp_path, "alice")
    made = authority.issue_cert("127.0.0.1")
    cert, key, ca = (str(tmp_path / name) for name in ("cert", "key", "ca"))
    made.cert_chain_pems[0].write_to_path(cert)
    made.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(ca)
    flags = ("--port=0", f"--tls_cert={cert}", f"--tls_key={key}", f"--tokens={people.path}")
    trust = ssl.create_default_context(cafile=ca)
    with (
        started("-m", "http_gateway", *flags) as (_, url),
        httpx.Client(base_url=url, verify=trust, trust_env=False) as http,
    ):
        assert url.startswith("https://")
        assert http.get("/healthz").status_code == 200
        assert http.get("/").status_code == 401
        assert http.get("/", headers=people.headers("alice")).status_code == 200


@pytest.mark.extended
@pytest.mark.parametrize("flag", ["--tokens", "--tls_cert"])
def test_a_file_that_cannot_be_read_ends_the_start_with_its_name(tmp_path: Path, flag: str):
    missing = str(tmp_path / "missing")
    flags = [flag, missing, *(["--tls_key", missing] if flag == "--tls_cert" else [])]
    ended = subprocess.run(
        [sys.executable, "-m", "http_gateway", "--port=0", *flags], capture_output=True, text=True
    )
    assert ended.returncode == 1
    assert missing in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.extended
def test_a_container_has_its_keys_in_a_variable_and_its_log_in_json():
    token = new_token()
    flags = ["-m", "http_gateway", "--port=0", "--admin=127.0.0.1:1", "--log_format=json"]
    environment = {"SAX_TOKENS": token_line("alice", token, KeyLimits(rpm=9))}
    with started(*flags, environment=environment) as (process, url):
        assert httpx.get(f"{url}/metrics").status_code == 401
        known = httpx.get(f"{url}/metrics", headers={"x-api-key": token})
        assert (known.status_code, known.headers["x-ratelimit-limit-requests"]) == (200, "9")
        httpx.get(f"{url}/nothing", headers={"x-api-key": token, "x-request-id": "abc-1"})
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        told = [json.loads(line) for line in process.stderr.read().splitlines()]
    lines = [each for each in told if each["logger"] == "http_gateway.access"]
    assert [(each["status"], each["key"]) for each in lines] == [(401, "127.0.0.1"), (404, "alice")]
    assert lines[1]["request_id"] == "abc-1"


@pytest.mark.extended
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_the_process_tells_its_port_lives_without_an_admin_and_ends_with_0(by: signal.Signals):
    flags = ["-m", "http_gateway", "--port", "0", "--admin", "127.0.0.1:1"]
    with started(*flags) as (process, url):
        assert httpx.get(f"{url}/healthz").status_code == 200
        ready = httpx.get(f"{url}/readyz", timeout=60)
        assert (ready.status_code, ready.json()["status"]) == (503, "not ready")
        process.send_signal(by)
        assert process.wait(60) == 0


@pytest.mark.extended
def test_a_running_stream_is_finished_before_the_process_ends():
    with started("-c", HOLDING) as (process, url):
        body = {"model": "smollm2", "prompt": "x", "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            assert '"text":" 1"' in next(lines)
            process.send_signal(signal.SIGTERM)
            assert list(lines)[-2:] == ["data: [DONE]", ""]
        assert process.wait(60) == 0
