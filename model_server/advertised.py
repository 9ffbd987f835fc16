"""The address at which other machines reach this server."""

from __future__ import annotations

import socket


def advertised_host(host: str, told: str = "") -> str:
    """Return the host to advertise for a server that listens on `host`.

    `told` wins if given; a wildcard address becomes this machine's own.
    """
    if told:
        return f"[{told}]" if ":" in told and not told.startswith("[") else told
    if host not in ("0.0.0.0", "::", "[::]"):
        return host
    return socket.gethostbyname(socket.gethostname())
