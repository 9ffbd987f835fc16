"""Disaggregated prefill of one model: its contract, its runner, its transfers, its counters."""

from __future__ import annotations

from dataclasses import dataclass

from model_server.disaggregation.contract import Contract
from model_server.disaggregation.drafted_handoff_runner import handoff_runner
from model_server.disaggregation.handoff_runner import MovableRunner
from model_server.disaggregation.transfers import PageAllowance, Transfers


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
        runner: MovableRunner,
        *,
        room: int,
        page_bytes: int,
    ) -> None:
        """room: pages that may wait here to be fetched."""
        self.contract = contract
        self.runner = handoff_runner(runner, transfers)
        self.transfers = transfers
        self.page_bytes = page_bytes  # over all devices
        self.outgoing = PageAllowance(room)
        self.moved = TransferTotals()
