"""Recent replicas: where one client's requests with each key went last, bounded in size and age."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import NamedTuple

from sax.client.routing.affinity import Affinity
from sax.client.routing.choice import PrefixMatch, Wish

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
