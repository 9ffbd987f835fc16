"""Warns when an unauthenticated server listens on a public address."""

from __future__ import annotations

import ipaddress

_FRAME = "!" * 78


def open_warning(host: str, *, closed: bool, offers: str, remedy: str) -> str:
    """Return the warning; "" if callers must authenticate or the address is loopback.

    `offers` says what anyone could do, `remedy` how to start the process instead.
    """
    if closed or is_loopback(host):
        return ""
    return "\n".join(
        (
            "anyone may call",
            _FRAME,
            f"OPEN TO EVERYONE: listening on {host or 'every address'} without authentication.",
            f"Anyone who reaches this port can {offers}.",
            f"To close it: {remedy}; see docs/security.md.",
            _FRAME,
        )
    )


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach the host; other names count as remote."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
