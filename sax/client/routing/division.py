"""Division of a model's requests between its own version and its canary's. Pure.

All requests of a session get one version, and while a canary's share grows, sessions only come to
it: none goes back and forth.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b

from sax.types import CanaryShare

_WHOLE = 100.0


def point_of(session: bytes, version: str) -> float:
    """Return where a session falls between 0 and 100; below its share the canary serves it."""
    digest = blake2b(session, digest_size=8, key=version.encode()).digest()
    return _WHOLE * int.from_bytes(digest, "big") / 2**64


def sides(
    addresses: Collection[str], share: CanaryShare | None, session: bytes, drawn: float
) -> tuple[frozenset[str], ...]:
    """Return the replicas of the version that a request falls to, then the others, which take it
    if those cannot; empty sides are left out.

    drawn: from 0 to 100, for a request without a session; the same for all its attempts.
    """
    ready = frozenset(addresses)
    if share is None:
        return (ready,) if ready else ()
    point = point_of(session, share.version) if session else drawn
    canary, own = ready & share.addresses, ready - share.addresses
    ordered = (canary, own) if point < share.percent else (own, canary)
    return tuple(side for side in ordered if side)
