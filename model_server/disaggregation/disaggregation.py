"""Disaggregated prefill of one model: its contract, its runner, its transfers, its counters; and
which prompts are prefilled elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from model_server.disaggregation.contract import Contract
from model_server.disaggregation.handed_pages import PageAllowance, PageCount, handed_over
from model_server.disaggregation.handoff_runner import HandoffRunner
from model_server.engine.limits import EngineLimits
from model_server.engine.running.ops import Runner

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


@dataclass(slots=True)
class TransferTotals:
    """Lifetime counters of disaggregated prefill."""

    fetched: int = 0  # prompts whose pages came from a prefill server
    fetched_bytes: int = 0
    fetch_s: float = 0.0
    computed_here: int = 0  # prompts that fell back to local prefill
    offered: int = 0  # prompts computed for another server
    expired: int = 0  # of the offered, never fetched


class Disaggregation:
    def __init__(
        self,
        contract: Contract,
        transfers: Transfers,
        runner: Runner,
        *,
        room: PageCount,
        page_bytes: int,
        window_bytes: int = 0,
    ) -> None:
        """room: pages that may wait here to be fetched.

        page_bytes, window_bytes: of a page of either kind, over all devices.
        """
        self.contract = contract
        self.runner = HandoffRunner(runner, transfers)
        self.transfers = transfers
        self.page_bytes, self.window_bytes = page_bytes, window_bytes
        self.outgoing = PageAllowance(room)
        self.moved = TransferTotals()

    def bytes_of(self, tokens: int) -> int:
        """Return the bytes of so many tokens' pages, over all devices."""
        return handed_over(self.runner.limits, tokens).bytes(self.page_bytes, self.window_bytes)


def is_remote(prompt: int, limits: EngineLimits) -> bool:
    """Check whether a prompt of this many tokens is prefilled remotely.

    One that fills the short context of a model with LongRoPE would be computed again here for its
    second token.
    """
    return prompt >= worthwhile(limits) and prompt != limits.short_context


def worthwhile(limits: EngineLimits) -> int:
    """Return the length of the shortest prompt that is prefilled remotely.

    A prompt that fits one step delays others by no more than that step. It must also fill a page.
    """
    block = limits.prefill_block
    blocks = limits.max_prefill_blocks or limits.token_budget // block
    return max(blocks * block, limits.page_size) + 1
