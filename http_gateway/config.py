"""The gateway's settings: one frozen value, built once in `__main__` and passed down."""

from __future__ import annotations

import math
from dataclasses import dataclass

from http_gateway.client_address import parse_networks
from http_gateway.images.media_hosts import MediaHosts
from http_gateway.mcp.servers import read_mcp_servers
from http_gateway.modes import read_origins
from sax.config import GATEWAY_PORT, check_address

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
class GatewayConfig:
    """Settings of one gateway. Raises ValueError with the remedy for a bad value."""

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
        if self.prefer:
            check_address(self.prefer, "--prefer")
        if self.saxml_generation not in (1, 2):
            raise ValueError(f"--saxml_generation {self.saxml_generation}: give 1 or 2")
        for name in _TIMES:
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise ValueError(f"--{name} {value}: give more than 0")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("--tls_cert and --tls_key go together: give both or none")
        parse_networks(self.trusted_proxies)
        MediaHosts.parse(self.media_hosts)
        read_mcp_servers(self.mcp_servers)
        _check_trace_url(self.trace_url)
        chosen = (("access_log", ACCESS_LOG), ("log_format", LOG_FORMATS), ("batches", BATCHES))
        for name, choices in chosen:
            if (value := getattr(self, name)) not in choices:
                raise ValueError(f"--{name} {value}: give {' or '.join(choices)}")
        read_origins(self.cors_origins)
        for name in _COUNTS:
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"--{name} {value}: give at least 1")


def _check_trace_url(url: str) -> None:
    if url and not (url.startswith(("http://", "https://")) and "{trace_id}" in url):
        raise ValueError(
            f"--trace_url {url!r}: give an address of http or https with {{trace_id}} in it, such "
            "as https://jaeger.example.com/trace/{trace_id}"
        )
