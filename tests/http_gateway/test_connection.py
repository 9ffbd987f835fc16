"""Slow and oversized requests on real connections, against a gateway process; and its certificate:
a new one is taken up at the next handshake, a broken one never.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import ssl
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
import uvicorn

from http_gateway.__main__ import GatewayServer
from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from http_gateway.connection import MAX_HEAD_BYTES, Certificate, connections
from sax.errors import InvalidRequest
from sax.host import loop_factory
from tests.each_case import each_case
from tests.http_gateway.fake_cell import FakeCell, published
from tests.http_gateway.test_main import started

FLAGS = ("--port=0", "--admin=127.0.0.1:1")
HASTY = ("--header_timeout_s=1", "--body_timeout_s=1")
MOST = 8  # connections
LONG_S = 60.0
POST = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
GET = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n"


@pytest.fixture(scope="module")
def hasty_url() -> Iterator[str]:
    """A gateway that waits a second for a head or a body."""
    with started("-m", "http_gateway", *FLAGS, *HASTY) as (_, url):
        yield url


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A gateway that waits longer than a busy machine takes to send and read a request."""
    limits = (f"--header_timeout_s={LONG_S:g}", f"--body_timeout_s={LONG_S:g}")
    with started("-m", "http_gateway", *FLAGS, *limits, f"--max_connections={MOST}") as (_, url):
        yield url


def connect(url: str, text: str = "") -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=LONG_S)
    connection.sendall(text.encode())
    return connection


def rest_of(connection: socket.socket) -> str:
    """All that comes until the gateway closes."""
    with closing(connection):
        return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()


def status_of(reply: str) -> int:
    return int(reply.split(" ", 2)[1])


@pytest.mark.extended
def test_headers_that_do_not_end_are_answered_408_and_closed(hasty_url: str) -> None:
    reply = rest_of(connect(hasty_url, POST))
    assert status_of(reply) == 408
    assert "within 1 s" in reply
    assert "connection: close" in reply
    assert "x-request-id: " in reply


@pytest.mark.extended
def test_a_head_that_does_not_end_is_answered_in_the_format_of_its_route(hasty_url: str) -> None:
    head, _, body = rest_of(
        connect(hasty_url, "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\n")
    ).partition("\r\n\r\n")
    told = json.loads(body)
    assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
    assert f"request-id: {told['request_id']}" in head
    ollama = rest_of(connect(hasty_url, "POST /api/chat HTTP/1.1\r\nhost: localhost\r\n"))
    assert [*json.loads(ollama.partition("\r\n\r\n")[2])] == ["error"]


@pytest.mark.extended
def test_a_connection_that_asks_nothing_is_closed_without_a_word(hasty_url: str) -> None:
    assert rest_of(connect(hasty_url)) == ""


@pytest.mark.extended
def test_a_body_that_does_not_end_is_answered_in_the_format_of_its_route_and_closed(
    hasty_url: str,
) -> None:
    reply = rest_of(connect(hasty_url, f"{POST}content-length: 100\r\n\r\n" + "{"))
    assert status_of(reply) == 408
    assert '"code":"request_timeout"' in reply
    assert "--body_timeout_s" in reply


@pytest.mark.extended
def test_the_rest_of_a_body_that_was_refused_is_not_waited_for(url: str) -> None:
    reply = rest_of(connect(url, f"{POST}content-length: 999999999\r\n\r\n"))
    assert status_of(reply) == 413


@pytest.mark.extended
@each_case(
    "head",
    [
        f"{GET}x: {'v' * (1 << 20)}\r\n\r\n",
        f"{GET}{'n' * (1 << 20)}: v\r\n\r\n",
        GET + "".join(f"x{i}: v\r\n" for i in range(40_000)) + "\r\n",
        f"GET /{'p' * (1 << 20)} HTTP/1.1\r\n\r\n",
        f"{POST}transfer-encoding: chunked\r\n\r\n0\r\nx: {'v' * (1 << 20)}\r\n\r\n",
        f"{GET}x: {'v' * MAX_HEAD_BYTES}",  # no end yet
    ],
)
def test_a_head_of_more_than_64_kib_is_refused_whatever_fills_it(head: str, url: str) -> None:
    connection = connect(url)
    try:
        connection.sendall(head.encode())
    except (BrokenPipeError, ConnectionResetError):
        pytest.fail("the gateway closed before it took in what was sent")
    reply = rest_of(connection)
    assert len(reply) < 1000
    assert status_of(reply) == 431


@pytest.mark.extended
@pytest.mark.parametrize("words", ["what is this?\r\n\r\n", "\x16\x03\x01\x02 a TLS handshake"])
def test_what_is_no_http_is_answered_400_like_any_wrong_request(url: str, words: str) -> None:
    reply = rest_of(connect(url, words))
    assert status_of(reply) == 400
    assert "x-request-id: " in reply
    assert '{"detail":"this is no HTTP request' in reply


@pytest.mark.extended
def test_a_head_just_below_the_limit_is_read(url: str) -> None:
    reply = rest_of(
        connect(url, f"{GET}connection: close\r\nx: {'v' * (MAX_HEAD_BYTES - 200)}\r\n\r\n")
    )
    assert status_of(reply) == 200


def test_requests_that_follow_each_other_on_one_connection_count_alone(url: str) -> None:
    head = f"{GET}x: {'v' * (MAX_HEAD_BYTES // 2)}\r\n\r\n"
    last = f"{GET}connection: close\r\n\r\n"
    assert rest_of(connect(url, head * 5 + last)).count("HTTP/1.1 200") == 6


def test_a_new_connection_replaces_one_that_has_no_request(url: str) -> None:
    held = [connect(url, GET) for _ in range(2 * MOST)]
    assert httpx.get(f"{url}/healthz", trust_env=False, timeout=LONG_S).status_code == 200
    for connection in held:
        connection.close()


@pytest.mark.extended
def test_a_connection_that_stays_idle_between_requests_is_kept(hasty_url: str) -> None:
    with httpx.Client(base_url=hasty_url, trust_env=False, timeout=LONG_S) as http:
        first = http.get("/healthz").extensions["network_stream"].get_extra_info("client_addr")
        rest_of(connect(hasty_url, POST))  # longer than the time limit of a head
        second = http.get("/healthz").extensions["network_stream"].get_extra_info("client_addr")
    assert first == second


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/net/tcp is Linux's")
def test_the_system_probes_connections_whose_client_may_have_lost_its_power(url: str) -> None:
    with closing(connect(url, POST)) as connection:
        ends_s = time.monotonic() + LONG_S
        while (timer := timer_of_gateway(connection)) != "02" and time.monotonic() < ends_s:
            time.sleep(0.05)  # the gateway has not taken it up yet
    assert timer == "02"  # that of keepalive


def timer_of_gateway(connection: socket.socket) -> str:
    """Return the kind of timer that runs for the gateway's end of a connection."""
    own, other = connection.getsockname()[1], connection.getpeername()[1]
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines())
    (timer,) = (
        row[5] for row in rows if (row[1][-5:], row[2][-5:]) == (f":{other:04X}", f":{own:04X}")
    )
    return timer.partition(":")[0]


ASK = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Files:
    """A certificate and its key, and an authority that both sides know."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"
        self.versions = 0
        self.write("first.example")

    def write(self, name: str) -> None:
        made = self.authority.issue_cert("127.0.0.1", name)
        _put(self.cert, made.cert_chain_pems[0].bytes())
        _put(self.key, made.private_key_pem.bytes())
        self.versions += 1

    def loaded(self, clock: Callable[[], float]) -> Certificate:
        return Certificate(str(self.cert), str(self.key), clock)


def _put(path: Path, content: bytes) -> None:
    """Replace a file as cert-manager does: another file under the same name."""
    beside = path.with_suffix(".new")
    beside.write_bytes(content)
    os.replace(beside, path)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


class Clock:
    """A clock on which each look is two seconds after the last one."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 2.0
        return self.now_s


class Session:
    """One connection of a client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @property
    def name(self) -> str:
        """The second name in the certificate that the server showed."""
        shown: Any = self._writer.get_extra_info("peercert")
        return str(next(value for kind, value in shown["subjectAltName"] if kind == "DNS"))

    async def ask(self) -> bytes:
        self._writer.write(ASK)
        return await self._reader.readuntil(b'{"status":"alive"}')

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


@asynccontextmanager
async def serving(files: Files):
    """A gateway over HTTPS; yields what opens a connection to it."""
    config = GatewayConfig()
    listener = socket.create_server(("127.0.0.1", 0))
    settings = uvicorn.Config(
        create_app(FakeCell(published()), config),
        log_config=None,
        lifespan="off",
        ws="none",
        http=connections(config),  # pyright: ignore[reportArgumentType]
        ssl_certfile=str(files.cert),
        ssl_keyfile=str(files.key),
    )
    settings.load()
    settings.ssl = files.loaded(Clock()).context()
    server = GatewayServer(settings)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    port = listener.getsockname()[1]
    trust = ssl.create_default_context()
    files.authority.configure_trust(trust)

    async def connect(server_name: str | None = None) -> Session:
        """By address, without a server name in the handshake, unless one is given."""
        name = server_name or "127.0.0.1"
        return Session(
            *await asyncio.open_connection("127.0.0.1", port, ssl=trust, server_hostname=name)
        )

    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    try:
        yield connect
    finally:
        server.should_exit = True
        await running


def on_our_loop(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run on the loop that gateways run on."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(story())


def test_a_new_certificate_is_taken_up_while_old_connections_live_on(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "http_gateway.connection")

    async def story() -> None:
        async with serving(files) as connect:
            old = await connect()
            assert old.name == "first.example"
            files.write("second.example")
            for name in (None, "second.example"):
                new = await connect(name)
                assert new.name == "second.example"
                assert await new.ask()
                await new.close()
            assert await old.ask()
            await old.close()

    on_our_loop(story)
    assert caplog.text.count("reloaded the certificate") == 1


def test_broken_files_keep_the_old_certificate_until_they_fit_again(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with serving(files) as connect:

            async def shown() -> str:
                session = await connect()
                assert await session.ask()
                await session.close()
                return session.name

            good_key = files.key.read_bytes()
            _put(files.cert, files.authority.issue_cert("127.0.0.1").cert_chain_pems[0].bytes())
            for _ in range(3):
                assert await shown() == "first.example"  # a certificate without its key
            assert len(caplog.records) == 1
            _put(files.cert, b"not a certificate")
            assert await shown() == "first.example"
            os.remove(files.key)
            assert await shown() == "first.example"
            assert [each.levelname for each in caplog.records] == ["ERROR"] * 3
            assert str(files.cert) in caplog.text
            _put(files.key, good_key)
            files.write("second.example")
            assert await shown() == "second.example"

    on_our_loop(story)


def test_files_are_looked_at_once_a_second_at_most(files: Files) -> None:
    now_s = [0.0]
    certificate = files.loaded(lambda: now_s[0])
    first = certificate.newest()
    files.write("second.example")
    now_s[0] = 0.9
    assert certificate.newest() is first
    now_s[0] = 1.0
    assert certificate.newest() is not first


@pytest.mark.parametrize("broken", ["cert", "key"])
def test_files_that_cannot_be_used_end_the_start(files: Files, broken: str) -> None:
    getattr(files, broken).write_bytes(b"-----BEGIN nothing")
    with pytest.raises(InvalidRequest, match=str(files.cert)):
        files.loaded(Clock())


def test_a_key_with_a_password_ends_the_start_and_asks_nobody(files: Files) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"x")
    form = serialization.PrivateFormat.PKCS8
    files.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, secret))
    with pytest.raises(InvalidRequest, match="without a password"):
        files.loaded(Clock())
