"""Choice of the replica for one request: the least loaded, unless one that has its prefix is about
as good. Pure.

Gateways that know nothing of each other agree: a prefix that a client has not seen lately is placed
by rendezvous hashing, which moves only a lost replica's own prefixes to others.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

# By how many requests a replica may be ahead of the least loaded one before it is clearly busier,
# for a prompt all of which it has: 4, and a quarter of what the least loaded one has. Measured by
# `python -m tests.tools.bench routing`.
_SPARE = 4.0
_RATIO = 0.25


class ServerLoad(NamedTuple):
    """Load of a server as this client sees it; smaller is better."""

    suspect: bool  # connection broke recently
    outstanding: int


class PrefixMatch(NamedTuple):
    """A replica that had a prefix of the prompt, and the share of the prompt that the prefix is."""

    address: str
    share: float


@dataclass(frozen=True, slots=True)
class Wish:
    """Replicas that a request would rather have, unless they are clearly busier."""

    known: Sequence[PrefixMatch] = ()  # the longest match first
    home: bytes = b""  # key that places it among all replicas; empty: none
    home_share: float = 0.0  # what that is worth, as if so much of the prompt were there


NO_WISH = Wish()


def choose(
    loads: Mapping[str, ServerLoad],
    tried: Collection[str],
    preferred: str = "",
    wish: Wish = NO_WISH,
) -> str | None:
    """Return the address for a request among those not tried, or None.

    The preferred one wins unless its connection broke recently, whatever its load. Then the first
    known one that is not clearly busier than the least loaded, then the home among such, then the
    least loaded, at random among equals.
    """
    fresh = {address: load for address, load in loads.items() if address not in tried}
    if not fresh:
        return None
    if preferred in fresh and not fresh[preferred].suspect:
        return preferred
    least = min(fresh.values())
    for address, share in wish.known:
        if address in fresh and not clearly_busier(fresh[address], least, share):
            return address
    if wish.home:
        able = [a for a, load in fresh.items() if not clearly_busier(load, least, wish.home_share)]
        return max(able, key=lambda address: weight(wish.home, address))
    return random.choice([address for address, load in fresh.items() if load == least])


def clearly_busier(load: ServerLoad, least: ServerLoad, share: float) -> bool:
    """Return True if a replica has so much more work that this share of a prompt is not worth the
    wait."""
    ahead = load.outstanding - least.outstanding
    worth = share * (_SPARE + _RATIO * least.outstanding)
    return load.suspect > least.suspect or ahead > worth


def weight(key: bytes, address: str) -> bytes:
    """Rank of an address for a key (rendezvous hashing); the highest is the key's home."""
    return blake2b(address.encode(), digest_size=8, key=key).digest()
