"""The gateway's certificate: a new one is taken up at the next handshake, a broken one never."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvicorn

from http_gateway.__main__ import GatewayServer
from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from http_gateway.connection import Certificate, connections
from sax.errors import InvalidRequest
from sax.host import loop_factory
from tests.http_gateway.fake_cell import FakeCell, published

GET = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"


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
        self._writer.write(GET)
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
