"""Choice of the replica for one request: the least loaded, unless one that has its prefix is about
as good. Pure.

Gateways that know nothing of each other agree: a prefix that a client has not seen lately is placed
by rendezvous hashing, which moves only a lost replica's own prefixes to others.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from sax.client.routing.affinity import Affinity
from sax.types import CanaryShare

_WHOLE = 100.0

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


_MOST = 1 << 15  # keys; about 7 MB, the last 1,800 prompts of 32 KiB
_KEPT_S = 600.0  # by then other prompts have taken the pages of a busy replica


class _LastUse(NamedTuple):
    address: str
    at_s: float


class RecentReplicas:
    """Memory of one client; the caller passes the time. The keys used longest ago go first."""

    def __init__(self, most: int = _MOST, kept_s: float = _KEPT_S) -> None:
        self._most = most
        self._kept_s = kept_s
        self._places: OrderedDict[bytes, _LastUse] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def wish(self, affinity: Affinity, among: Collection[str], now: float) -> Wish:
        """Return where a request would rather go, among these replicas: to one that has a prefix of
        its prompt, else where every client sends prompts that part from the known ones as this one
        does."""
        known: dict[str, float] = {}
        home = b""
        for key in affinity.keys:
            place = self._places.get(key.digest)
            fresh = place is not None and now - place.at_s <= self._kept_s
            if place is not None and fresh and place.address in among:
                known.setdefault(place.address, key.share)
            elif not known:
                home = key.digest  # in the end, the shortest one that is not known
        return Wish([PrefixMatch(*pair) for pair in known.items()], home, affinity.home_share)

    def remember(self, affinity: Affinity, address: str, now: float) -> None:
        place = _LastUse(address, now)
        for key in affinity.keys:
            self._places[key.digest] = place
            self._places.move_to_end(key.digest)
        while len(self._places) > self._most:
            self._places.popitem(last=False)


# Division of a model's requests between its own version and its canary's. Pure.
#
# All requests of a session get one version, and while a canary's share grows, sessions only come
# to it: none goes back and forth.


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
