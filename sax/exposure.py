"""What to say, loudly, of a server that asks nobody who they are and can be reached from afar.

Pure: says it to nobody.
"""

from __future__ import annotations

import ipaddress

_FRAME = "!" * 78


def open_warning(host: str, *, closed: bool, offers: str, remedy: str) -> str:
    """The warning; "" if callers must prove who they are, or all of them are on this machine.

    `offers` says what anyone may do then, `remedy` what to start the process with.
    """
    if closed or is_loopback(host):
        return ""
    return "\n".join(
        (
            "anyone may call",
            _FRAME,
            f"OPEN TO EVERYONE: listening on {host or 'every address'} without authentication.",
            f"Whoever reaches this port can {offers}.",
            f"To close it: {remedy}; see docs/security.md.",
            _FRAME,
        )
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on this host; a name is believed to be far."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
