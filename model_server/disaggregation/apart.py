"""What a language model needs in order that its prompts may be computed on another server.

The seam between serving and devices: the real one moves arrays, the tests' one is arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from model_server.disaggregation.contract import Contract
from model_server.disaggregation.page_room import PageRoom

# Whole contexts of pages that may be on their way, in and out each: memory planned beside the pool.
CONTEXTS = 4
KEYS = 2**62  # keys are below: random, and as such secrets


class Transfers(Protocol):
    """Moves the pages of one model, on all of its hosts. Any thread may call it."""

    gives: bool
    takes: bool

    def addresses(self) -> Sequence[str]:
        """Where others fetch what is offered: one address per host, in their order."""
        ...

    def reserve(self, key: int, pages: int) -> bool:
        """Room for pages to be fetched, until a step takes them in or they are dropped; False if
        there is none."""
        ...

    def fetch(self, key: int, addresses: Sequence[str], deadline_s: float) -> None:
        """Keep the pages that another server offers under a reserved key.

        Blocks up to `deadline_s` seconds. Raises DeadlineExceeded, ReplicaLost.
        """
        ...

    def drop(self, key: int) -> None:
        """Free what is reserved, fetched or offered under the key, if anything is; whoever fetches
        it later gets an error."""
        ...


@dataclass(slots=True)
class Moved:
    """What became of prompts that were computed apart, ever."""

    fetched: int = 0  # prompts whose pages came from another server
    fetched_bytes: int = 0
    fetch_s: float = 0.0
    computed_here: int = 0  # prompts that another server was to compute, and did not
    offered: int = 0  # prompts computed for another server
    expired: int = 0  # of those, never fetched


class Apart:
    """One model's share in it, and its figures."""

    def __init__(
        self, contract: Contract, transfers: Transfers, *, room: int, page_bytes: int
    ) -> None:
        self.contract = contract
        self.transfers = transfers
        self.page_bytes = page_bytes  # over all devices
        self.outgoing = PageRoom(room)
        self.moved = Moved()
