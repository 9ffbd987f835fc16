"""Interface for transferring one model's pages.

Separates serving from devices: the real one moves arrays, the one in tests is arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from model_server.disaggregation.handed_pages import PageCount

KEYS = 2**62  # exclusive upper bound of keys; they are random and so serve as secrets


class Transfers(Protocol):
    """Moves the pages of one model, on all of its hosts. Any thread may call it."""

    gives: bool
    takes: bool

    def addresses(self) -> Sequence[str]:
        """Return where other replicas fetch exported pages: one address per host, in host order."""
        ...

    def reserve(self, key: int, count: PageCount) -> bool:
        """Reserve memory for pages to be fetched; False if there is too little.

        It stays reserved until the pages are imported or dropped.
        """
        ...

    def fetch(self, key: int, addresses: Sequence[str], deadline_s: float) -> None:
        """Fetch the pages that another server exports under a reserved key.

        Blocks up to `deadline_s` seconds. Raises DeadlineExceeded, ReplicaLost.
        """
        ...

    def drop(self, key: int) -> None:
        """Free what is reserved, fetched or exported under the key; a late fetch gets an error."""
        ...
