"""The gateway's settings: one frozen value, read from flags in `__main__` and passed down."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from http_gateway.auth import parse_networks
from http_gateway.images.image_fetcher import MediaHosts
from http_gateway.mcp import read_mcp_servers
from http_gateway.modes import read_origins
from sax.config import check_address
from sax.errors import SaxError
from sax.flags.gateway_flags import GatewaySettings, add_gateway_flags


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig(GatewaySettings):
    """Settings of one gateway. Raises ValueError with the remedy for a bad value."""

    def __post_init__(self) -> None:
        GatewaySettings.__post_init__(self)  # super() does not find it where there are slots
        if self.prefer:
            check_address(self.prefer, "--prefer")
        parse_networks(self.trusted_proxies)
        MediaHosts.parse(self.media_hosts)
        read_mcp_servers(self.mcp_servers)
        _check_trace_url(self.trace_url)
        read_origins(self.cors_origins)


def _check_trace_url(url: str) -> None:
    if url and not (url.startswith(("http://", "https://")) and "{trace_id}" in url):
        raise ValueError(
            f"--trace_url {url!r}: give an address of http or https with {{trace_id}} in it, such "
            "as https://jaeger.example.com/trace/{trace_id}"
        )


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
    parser = argparse.ArgumentParser(
        prog="http_gateway",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_gateway_flags(parser)
    return parser
