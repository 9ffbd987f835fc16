"""`python -m http_gateway`: flags, logging, signals, and one uvicorn server.

SIGTERM and SIGINT stop listening, let running requests finish, and exit 0.
"""

from __future__ import annotations

import argparse
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

from http_gateway.access.log_format import configure_log
from http_gateway.app import create_app
from http_gateway.cell_client import CellClient
from http_gateway.certificate import Certificate
from http_gateway.config import ACCESS_LOG, LOG_FORMATS, GatewayConfig
from http_gateway.connection import BoundedConnection, connections
from http_gateway.openai.batches.worker import BatchWorker
from sax.auth.authentication import Authentication
from sax.auth.credentials import Credentials, read_pem
from sax.auth.token_source import TOKENS_VARIABLE, token_source, tokens_given
from sax.client import AsyncClient
from sax.client.attempts import RetryLimits
from sax.errors import SaxError
from sax.host import allow_open_files, loop_factory, open_warning
from sax.storage.object_store import open_store
from sax.tracing.otlp import tracer_of
from sax.tracing.tracer import NO_TRACER, Tracer

log = logging.getLogger("http_gateway")

GENERATION_VARIABLE = "SAXML_GENERATION"

_OTHER_FILES = 256  # connections to the cell, and what Python holds

_DESCRIPTION = """\
The HTTP gateway of a sax cell: Saxml's routes (/publish, /listcell, /listall, /generate,
/update, /unpublish), OpenAI's (/v1/chat/completions, /v1/responses, /v1/batches, ...), vLLM's
(/tokenize, /pooling, /health), Anthropic's (/v1/messages), Ollama's (/api/chat, ...), and
/healthz, /readyz, /metrics; /docs describes them all, and a browser at / gets a page to chat and
watch the cell. Its state is in the cell and in the store of --files: run as many as you like."""

_EXAMPLE = """\
example:
  python -m http_gateway --admin 127.0.0.1:10000 --port 8888
  curl -s http://127.0.0.1:8888/v1/chat/completions --data \\
    '{"model": "smollm2", "messages": [{"role": "user", "content": "Hello!"}]}'"""


def parse_flags(arguments: Sequence[str]) -> GatewayConfig:
    default = GatewayConfig()
    parser = argparse.ArgumentParser(
        prog="http_gateway",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--host", default=default.host, help="address to listen on (%(default)s)")
    add("--port", type=int, default=default.port, help="0 picks a free one (%(default)s)")
    add(
        "--admin",
        help="host:port of the admin servers, comma-separated (else SAX_ADMIN, SAX_ROOT, local)",
    )
    add(
        "--prefer",
        default=default.prefer,
        metavar="HOST:PORT",
        help="send requests to this model server while it is ready, and to the others otherwise; "
        "give the address that the admin server lists; for a gateway that runs beside one server",
    )
    add(
        "--saxml_generation",
        type=int,
        choices=(1, 2),
        default=os.environ.get(GENERATION_VARIABLE) or default.saxml_generation,
        help="reply format of the Saxml routes: 1 as in Google's tutorial of Saxml, 2 as in Saxml "
        f"since 2024 ({GENERATION_VARIABLE}, else 2)",
    )
    add(
        "--request_timeout_s",
        type=float,
        default=default.request_timeout_s,
        help="time limit for one request (%(default)s)",
    )
    add(
        "--max_body_bytes",
        type=int,
        default=default.max_body_bytes,
        help="largest request body (%(default)s)",
    )
    add(
        "--header_timeout_s",
        type=float,
        default=default.header_timeout_s,
        help="time limit for the headers of a request to arrive (%(default)s)",
    )
    add(
        "--body_timeout_s",
        type=float,
        default=default.body_timeout_s,
        help="time limit for the body of a request to arrive; each 32 KiB that arrive add a second "
        "(%(default)s)",
    )
    add(
        "--keep_alive_s",
        type=float,
        default=default.keep_alive_s,
        help="how long an idle connection stays open (%(default)s)",
    )
    add(
        "--max_connections",
        type=int,
        default=default.max_connections,
        help="connections at once; beyond them a new one replaces the one that has waited longest "
        "without a complete request (%(default)s)",
    )
    add(
        "--max_held_requests",
        type=int,
        default=default.max_held_requests,
        help="requests per model that may wait for its first replica (%(default)s)",
    )
    add(
        "--files",
        default=default.files,
        metavar="LOCATION",
        help="keep responses, files and batches in this folder or bucket (a path, or a URL such as "
        "gs://bucket/prefix); gateways that share it serve each other's (default: none are kept)",
    )
    add(
        "--max_file_bytes",
        type=int,
        default=default.max_file_bytes,
        help="largest file that may be uploaded (%(default)s)",
    )
    add(
        "--batch_concurrency",
        type=int,
        default=default.batch_concurrency,
        help="lines of batches that this gateway has answered at once; one while it serves "
        "requests (%(default)s)",
    )
    add(
        "--response_ttl_s",
        type=float,
        default=default.response_ttl_s,
        help="how long a stored response is kept (%(default)s)",
    )
    add(
        "--tokens",
        default="",
        metavar="FILE",
        help="require a token (as API key) whose hash is in this file; `sax token NAME` makes one "
        f"(default: no authentication, unless {TOKENS_VARIABLE} holds such lines)",
    )
    add(
        "--tls_cert",
        default="",
        metavar="PEM",
        help="certificate; turns on HTTPS, and is read again when it changes",
    )
    add("--tls_key", default="", metavar="PEM", help="private key of the certificate")
    add(
        "--access_log",
        choices=ACCESS_LOG,
        default=default.access_log,
        help="log a line for each request, without its text (%(default)s)",
    )
    add(
        "--log_format",
        choices=LOG_FORMATS,
        default=default.log_format,
        help="format of the log; json: one object a line (%(default)s)",
    )
    add(
        "--lenient",
        action="store_true",
        help="ignore unknown fields of requests and name them in the header x-sax-ignored-fields "
        "of the reply (default: refuse them by name)",
    )
    add(
        "--cors_origins",
        default=default.cors_origins,
        metavar="ORIGINS",
        help="comma-separated origins of the web pages that may call this gateway, such as "
        "https://app.example.com; * for any (default: none)",
    )
    add(
        "--trusted_proxies",
        default="",
        metavar="ADDRESSES",
        help="comma-separated addresses or networks of the proxies in front of this gateway, whose "
        "X-Forwarded-For is believed; users without tokens are told apart by address (default: "
        "none, the connection's own address counts)",
    )
    try:
        return GatewayConfig(**vars(parser.parse_args(arguments)))
    except (ValueError, SaxError) as error:
        parser.error(str(error))


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
        proxy_headers=False,  # http_gateway.client_address reads them, from proxies we trust
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
    async with worker.running():
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
