"""`python -m http_gateway`: logging, signals, and one uvicorn server.

SIGTERM and SIGINT stop listening, let running requests finish, and exit 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Generator, Sequence
from typing import cast

import uvicorn

from http_gateway.access import configure_log
from http_gateway.app import create_app
from http_gateway.cell_client import CellClient
from http_gateway.config import GatewayConfig, parse_flags
from http_gateway.connection import BoundedConnection, Certificate, connections
from http_gateway.openai.batches.worker import BatchWorker
from http_gateway.openai.responses.background import BackgroundRuns
from sax.auth.authentication import Authentication
from sax.auth.credentials import Credentials, read_pem
from sax.auth.token_file import token_source, tokens_given
from sax.client import AsyncClient
from sax.client.attempts import RetryLimits
from sax.errors import SaxError
from sax.host import allow_open_files, loop_factory, open_warning
from sax.storage.object_store import open_store
from sax.tracing import NO_TRACER, Tracer, tracer_of

log = logging.getLogger("http_gateway")

_OTHER_FILES = 256  # connections to the cell, and what Python holds


class GatewayServer(uvicorn.Server):
    """uvicorn server that does not re-raise a handled signal, so that the exit code is 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for each in signals:
            loop.add_signal_handler(each, self.handle_exit, each, None)
        try:
            yield
        finally:
            for each in signals:
                loop.remove_signal_handler(each)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or ():
            host, port = each.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            scheme = "https" if self.config.is_ssl else "http"
            log.info("gateway listening on %s://%s:%d", scheme, shown, port)


async def serve(client: CellClient, config: GatewayConfig, tracer: Tracer = NO_TRACER) -> None:
    """Serve until a signal; returns when every running request has ended.

    Raises InvalidRequest when the token file, certificate or key cannot be read, or when --files
    names no store.
    """
    tokens = token_source(config.tokens)
    store = open_store(config.files, param="files") if config.files else None
    certificate = Certificate(config.tls_cert, config.tls_key) if config.tls_cert else None
    allow_open_files(config.max_connections + _OTHER_FILES)
    tell_of_security(config)
    app = create_app(client, config, Authentication(tokens), store, tracer)
    settings = uvicorn.Config(
        app,
        host=config.host,
        port=config.port,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        proxy_headers=False,  # http_gateway.auth reads them, from proxies we trust
        http=cast("type[BoundedConnection]", connections(config)),
        timeout_keep_alive=cast("int", config.keep_alive_s),  # any number of seconds will do
        ssl_certfile=config.tls_cert or None,
        ssl_keyfile=config.tls_key or None,
        timeout_graceful_shutdown=math.ceil(config.request_timeout_s) + 5,
    )
    settings.load()
    if certificate is not None:
        settings.ssl = certificate.context()
    worker: BatchWorker = app.state.batches
    runs: BackgroundRuns = app.state.background
    async with worker.running(), runs.running():
        await GatewayServer(settings).serve(sockets=[settings.bind_socket()])


def tell_of_security(config: GatewayConfig) -> None:
    """Warn about open access. Raises InvalidRequest when the certificate or key is unreadable."""
    for path, name in ((config.tls_cert, "tls_cert"), (config.tls_key, "tls_key")):
        if path:
            read_pem(path, name)
    if warning := open_warning(
        config.host,
        closed=tokens_given(config.tokens),
        offers="call, publish and unpublish any model that the cell leaves open",
        remedy="start the gateway with --tokens FILE, or with --host 127.0.0.1",
    ):
        log.warning("%s", warning)
    if Credentials.ours().tls_cert and not tokens_given(config.tokens):
        log.warning(
            "this gateway has a client certificate but no --tokens: requests without a token reach "
            "the cell under the gateway's own name; give --tokens FILE"
        )


async def _run(config: GatewayConfig) -> None:
    patience = RetryLimits(most_held=config.max_held_requests)
    tracer = tracer_of(os.environ, "sax-gateway")
    try:
        async with AsyncClient(config.admin, patience=patience, preferred=config.prefer) as client:
            await serve(client, config, tracer)
    finally:
        await asyncio.to_thread(tracer.close)


def main(arguments: Sequence[str] | None = None) -> None:
    config = parse_flags(sys.argv[1:] if arguments is None else arguments)
    configure_log(config.log_format)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_run(config))
    except SaxError as error:
        log.error("%s", error)
        sys.exit(1)


if __name__ == "__main__":
    main()
