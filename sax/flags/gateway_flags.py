"""Flags of the gateway, which `sax up`, `run` and `demo` offer as options: plain values, and their
parser."""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import dataclass

from sax.auth.token_file import TOKENS_VARIABLE
from sax.config import GATEWAY_PORT

GENERATION_VARIABLE = "SAXML_GENERATION"

ACCESS_LOG = ("on", "off")
LOG_FORMATS = ("text", "json")
BATCHES = ("on", "off")

_TIMES = (
    "request_timeout_s",
    "header_timeout_s",
    "body_timeout_s",
    "keep_alive_s",
    "response_ttl_s",
)
_COUNTS = (
    "max_body_bytes",
    "max_file_bytes",
    "max_key_bytes",
    "max_connections",
    "max_held_requests",
    "batch_concurrency",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Values of the flags. Raises ValueError with the remedy for one out of range."""

    host: str = "127.0.0.1"
    port: int = GATEWAY_PORT  # 0: any free port
    admin: str | None = None  # host:port; None: SAX_ADMIN, SAX_ROOT, then the default
    prefer: str = ""  # host:port of the preferred model server; "": as sax.client.routing says
    saxml_generation: int = 2
    request_timeout_s: float = 600.0
    max_body_bytes: int = 32 << 20  # images of the most bytes, as base64, and text beside them
    header_timeout_s: float = 10.0  # for the head of a request
    body_timeout_s: float = 10.0  # for the body after it, and a second more per 32 KiB of it
    keep_alive_s: float = 75.0  # longer than clients pool connections, or they hit closed sockets
    max_connections: int = 4096
    max_held_requests: int = 256  # per model, waiting for its first replica
    files: str = ""  # folder or URL of stored responses, files and batches; "": there are none
    max_file_bytes: int = 200 << 20  # of one file, as at OpenAI for batches
    max_key_bytes: int = 20 << 30  # of all files of one key together
    batches: str = "on"  # or "off": files and batches are refused
    batch_concurrency: int = 8  # lines of batches at once
    response_ttl_s: float = 30 * 86400.0  # as long as OpenAI keeps a response
    tokens: str = ""  # file of names and hashes; "": no authentication
    tls_cert: str = ""
    tls_key: str = ""
    access_log: str = "on"  # or "off": one line a request
    log_format: str = "text"  # or "json"
    lenient: bool = False  # unknown fields pass, named in a header, instead of being refused
    ollama_changes: bool = False  # Ollama's pull, create, copy and delete change the cell's models
    cors_origins: str = ""  # of web pages that may call; "": none, "*": any
    media_hosts: str = ""  # hosts from which images may be fetched; "": none
    trace_url: str = ""  # of a trace at the collector, with {trace_id} in it; "": not known
    mcp_servers: str = ""  # URLs of MCP servers that requests may name; "": none
    trusted_proxies: str = ""  # addresses and networks whose X-Forwarded-For is believed

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(f"--port {self.port}: give a number from 0 to 65535")
        if self.saxml_generation not in (1, 2):
            raise ValueError(f"--saxml_generation {self.saxml_generation}: give 1 or 2")
        for name in _TIMES:
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise ValueError(f"--{name} {value}: give more than 0")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("--tls_cert and --tls_key go together: give both or none")
        chosen = (("access_log", ACCESS_LOG), ("log_format", LOG_FORMATS), ("batches", BATCHES))
        for name, choices in chosen:
            if (value := getattr(self, name)) not in choices:
                raise ValueError(f"--{name} {value}: give {' or '.join(choices)}")
        for name in _COUNTS:
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"--{name} {value}: give at least 1")


def add_gateway_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags, in groups, with the defaults of the settings."""
    default = GatewaySettings()
    _add_network(parser, default)
    _add_access(parser, default)
    _add_limits(parser, default)
    _add_formats(parser, default)
    _add_store(parser, default)


def _add_network(parser: argparse.ArgumentParser, default: GatewaySettings) -> None:
    add = parser.add_argument_group("addresses and TLS").add_argument
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
        "--tls_cert",
        default="",
        metavar="PEM",
        help="certificate; turns on HTTPS, and is read again when it changes",
    )
    add("--tls_key", default="", metavar="PEM", help="private key of the certificate")
    add(
        "--trusted_proxies",
        default="",
        metavar="ADDRESSES",
        help="comma-separated addresses or networks of the proxies in front of this gateway, whose "
        "X-Forwarded-For is believed; users without tokens are told apart by address (default: "
        "none, the connection's own address counts)",
    )


def _add_access(parser: argparse.ArgumentParser, default: GatewaySettings) -> None:
    add = parser.add_argument_group("who and what may call, and the log").add_argument
    add(
        "--tokens",
        default="",
        metavar="FILE",
        help="require a token (as API key) whose hash is in this file; `sax token NAME` makes one "
        f"(default: no authentication, unless {TOKENS_VARIABLE} holds such lines)",
    )
    add(
        "--cors_origins",
        default=default.cors_origins,
        metavar="ORIGINS",
        help="comma-separated origins of the web pages that may call this gateway, such as "
        "https://app.example.com; * for any (default: none)",
    )
    add(
        "--media_hosts",
        default=default.media_hosts,
        metavar="HOSTS",
        help="comma-separated hosts from which images are fetched that requests link to, such as "
        "images.example.com or *.example.com; * for any host with a public address; addresses and "
        "networks that are not public must be listed, too (default: none, images come in requests)",
    )
    add(
        "--mcp_servers",
        default=default.mcp_servers,
        metavar="URLS",
        help="comma-separated URLs of the MCP servers that requests may name, and this "
        "gateway then calls, such as https://mcp.example.com/mcp; exactly these (default: none)",
    )
    add(
        "--trace_url",
        default=default.trace_url,
        metavar="URL",
        help="where people look at a trace, such as https://jaeger.example.com/trace/{trace_id}: "
        "the page links its running requests there (default: no links)",
    )
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


def _add_limits(parser: argparse.ArgumentParser, default: GatewaySettings) -> None:
    add = parser.add_argument_group("limits").add_argument
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


def _add_formats(parser: argparse.ArgumentParser, default: GatewaySettings) -> None:
    add = parser.add_argument_group("formats").add_argument
    add(
        "--saxml_generation",
        type=int,
        choices=(1, 2),
        default=os.environ.get(GENERATION_VARIABLE) or default.saxml_generation,
        help="reply format of the Saxml routes: 1 as in Google's tutorial of Saxml, 2 as in Saxml "
        f"since 2024 ({GENERATION_VARIABLE}, else 2)",
    )
    add(
        "--lenient",
        action="store_true",
        help="ignore unknown fields of requests and name them in the header x-sax-ignored-fields "
        "of the reply (default: refuse them by name, but on Ollama's routes)",
    )
    add(
        "--ollama_changes",
        action="store_true",
        help="let /api/pull, create, copy and delete publish and unpublish models, with the rights "
        "of the caller's key (default: only sax publish and its routes do)",
    )


def _add_store(parser: argparse.ArgumentParser, default: GatewaySettings) -> None:
    add = parser.add_argument_group("stored responses, files and batches").add_argument
    add(
        "--files",
        default=default.files,
        metavar="LOCATION",
        help="keep responses, conversations, files and batches in this folder or bucket (a path, "
        "or a URL such as gs://bucket/prefix); gateways that share it serve each other's (default: "
        "none are kept)",
    )
    add(
        "--max_file_bytes",
        type=int,
        default=default.max_file_bytes,
        help="largest file that may be uploaded (%(default)s)",
    )
    add(
        "--max_key_bytes",
        type=int,
        default=default.max_key_bytes,
        help="uploads of a key are refused beyond so many bytes of all of its files, and its "
        "responses and conversations are not stored beyond as many of theirs; without keys, of all "
        "callers' (%(default)s)",
    )
    add(
        "--batches",
        choices=BATCHES,
        default=default.batches,
        help="off: files and batches are refused, and none is run; responses are kept all the same "
        "(%(default)s)",
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
        help="how long a stored response is kept, and a conversation after its last item "
        "(%(default)s)",
    )
