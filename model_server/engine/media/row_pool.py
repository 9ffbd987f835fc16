"""Rows of the media buffer: which image has which, and which may be overwritten. Pure.

An image keeps its rows after its last use, for requests that send it again; the one that was used
longest ago gives them up first. Pinned ones keep theirs.
"""

from __future__ import annotations

from collections import Counter, OrderedDict


class RowPool:
    """The rows 0 .. M - 1, by the digests of images."""

    def __init__(self, rows: int) -> None:
        self._free = list(range(rows - 1, -1, -1))  # the last one is taken next
        self._held: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()  # used longest ago first
        self._pins: Counter[bytes] = Counter()
        self.evictions = 0  # images that gave up their rows

    @property
    def used(self) -> int:
        """Rows of images that would be found."""
        return sum(map(len, self._held.values()))

    def find(self, digest: bytes) -> tuple[int, ...] | None:
        """Return the rows of an image, in order; None: it has none."""
        rows = self._held.get(digest)
        if rows is not None:
            self._held.move_to_end(digest)
        return rows

    def take(self, digest: bytes, count: int) -> tuple[int, ...] | None:
        """Give rows to an image that has none; None: too many are pinned."""
        assert digest not in self._held, "an image has its rows once"
        unpinned = [each for each in self._held if not self._pins[each]]
        if len(self._free) + sum(len(self._held[each]) for each in unpinned) < count:
            return None
        for each in unpinned:
            if len(self._free) >= count:
                break
            self._free += reversed(self._held.pop(each))
            self.evictions += 1
        rows = tuple(self._free.pop() for _ in range(count))
        self._held[digest] = rows
        return rows

    def pin(self, digest: bytes) -> None:
        """Keep the rows of an image until as many calls of `unpin`."""
        assert digest in self._held, "only what has rows keeps them"
        self._pins[digest] += 1

    def unpin(self, digest: bytes) -> None:
        self._pins[digest] -= 1
        assert self._pins[digest] >= 0, "it was pinned less often"
        if not self._pins[digest]:
            del self._pins[digest]
