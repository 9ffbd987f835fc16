"""The gateway's settings: one frozen value, built once in `__main__` and passed down."""

from __future__ import annotations

from dataclasses import dataclass

from http_gateway.client_address import parse_networks
from http_gateway.images.media_hosts import MediaHosts
from http_gateway.mcp.servers import read_mcp_servers
from http_gateway.modes import read_origins
from sax.config import check_address
from sax.flags.gateway_flags import GatewaySettings


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
