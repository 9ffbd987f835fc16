"""Addresses as names of callers that did not authenticate."""

from __future__ import annotations

import ipaddress
from urllib.parse import unquote

_NETWORK_BITS = 64  # of an IPv6 address; the rest is the client's to choose


def account_of_host(host: str) -> str:
    """Return the account of a client address: one per IPv4 address or IPv6 network."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return str(ipaddress.ip_network((address, _NETWORK_BITS), strict=False))
        address = address.ipv4_mapped
    return str(address)


def account_of_peer(peer: str) -> str:
    """Return the account of a gRPC peer: ipv4:1.2.3.4:567, ipv6:%5B::1%5D:567, unix:/path."""
    kind, _, rest = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    return account_of_host(rest.rpartition(":")[0].strip("[]"))
