"""The address of an HTTP client, behind proxies that the operator trusts or without any."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import Scope

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_HEADER = "x-forwarded-for"


def parse_networks(text: str) -> tuple[Network, ...]:
    """Parse comma-separated addresses and networks. Raises ValueError naming the flag."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    try:
        return tuple(ipaddress.ip_network(word, strict=False) for word in words)
    except ValueError as error:
        raise ValueError(
            f"--trusted_proxies {text!r}: {error}; give addresses or networks such as "
            "10.0.0.7,192.168.0.0/16"
        ) from None


def client_host(scope: Scope, trusted: Sequence[Network]) -> str:
    """Return the nearest address on the request's way that is not a trusted proxy.

    Each proxy appends the address that it saw to X-Forwarded-For, so entries count from the right,
    and only as far as trusted proxies wrote them: a client can write what it likes in front.
    """
    host = (scope.get("client") or ("", 0))[0]
    if not trusted or not _trusts(trusted, host):
        return host
    for entry in reversed(",".join(Headers(scope=scope).getlist(_HEADER)).split(",")):
        if not _is_address(entry.strip()):
            return host
        host = entry.strip()
        if not _trusts(trusted, host):
            return host
    return host


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _trusts(trusted: Sequence[Network], host: str) -> bool:
    if not _is_address(host):
        return False
    address = ipaddress.ip_address(host)
    return any(address in network for network in trusted)
