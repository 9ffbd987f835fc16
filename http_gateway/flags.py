"""Command-line flags of the gateway."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from http_gateway.config import ACCESS_LOG, BATCHES, LOG_FORMATS, GatewayConfig
from sax.auth.token_source import TOKENS_VARIABLE
from sax.errors import SaxError

GENERATION_VARIABLE = "SAXML_GENERATION"

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
    """Parse a command line; on a bad one, print the error and exit with status 2."""
    parser = make_parser()
    try:
        return GatewayConfig(**vars(parser.parse_args(arguments)))
    except (ValueError, SaxError) as error:
        parser.error(str(error))


def make_parser() -> argparse.ArgumentParser:
    default = GatewayConfig()
    parser = argparse.ArgumentParser(
        prog="http_gateway",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_network(parser, default)
    _add_access(parser, default)
    _add_limits(parser, default)
    _add_formats(parser, default)
    _add_store(parser, default)
    return parser


def _add_network(parser: argparse.ArgumentParser, default: GatewayConfig) -> None:
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


def _add_access(parser: argparse.ArgumentParser, default: GatewayConfig) -> None:
    add = parser.add_argument
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


def _add_limits(parser: argparse.ArgumentParser, default: GatewayConfig) -> None:
    add = parser.add_argument
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


def _add_formats(parser: argparse.ArgumentParser, default: GatewayConfig) -> None:
    add = parser.add_argument
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


def _add_store(parser: argparse.ArgumentParser, default: GatewayConfig) -> None:
    add = parser.add_argument
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
