"""Where others reach a server of this machine."""

from __future__ import annotations

import socket


def advertised_host(host: str, told: str = "") -> str:
    """The host that others reach a server on which listens on `host`; `told` if anybody said."""
    if told:
        return f"[{told}]" if ":" in told and not told.startswith("[") else told
    if host not in ("0.0.0.0", "::", "[::]"):
        return host
    return socket.gethostbyname(socket.gethostname())
