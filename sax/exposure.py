"""Tells loudly when a server that asks nobody who they are can be reached from other machines.

Pure but for the logger it is given.
"""

from __future__ import annotations

import ipaddress
import logging

_FRAME = "!" * 78


def warn_if_open(log: logging.Logger, *, host: str, closed: bool, offers: str, remedy: str) -> None:
    """Warn unless callers must prove who they are, or all of them are on this machine.

    `offers` says what anyone may do then, `remedy` what to start the process with.
    """
    if closed or is_loopback(host):
        return
    shown = host or "every address"
    lines = (
        _FRAME,
        f"OPEN TO EVERYONE: listening on {shown} without authentication.",
        f"Whoever reaches this port can {offers}.",
        f"To close it: {remedy}; see docs/security.md.",
        _FRAME,
    )
    log.warning("%s", "\n".join(lines))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on this host; a name is believed to be far."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
