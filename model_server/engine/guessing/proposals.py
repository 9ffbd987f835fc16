"""Guesses that a draft model makes, and how it is asked for them. Pure: `Proposer` hides it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable


class Beginning(NamedTuple):
    """Where the guesses of one sequence begin."""

    slot: int
    start: int  # position of its last token, which no step has computed yet
    token: int  # that token
    count: int  # guesses, of which the inputs have pages


class Proposals(NamedTuple):
    tokens: list[tuple[int, ...]]  # one tuple per beginning, of its count
    seconds: float  # from the question until they were on the host


@runtime_checkable
class Proposer(Protocol):
    """A runner with a draft model, which has computed all that its steps have."""

    @property
    def guess_seconds(self) -> Mapping[int, float]:
        """Seconds of one guess for each of so many rows, by compiled size, measured at load."""
        ...

    def propose(self, beginnings: Sequence[Beginning]) -> Proposals:
        """Make guesses for all of these at once, one token after the other.

        No step may be in flight. There are at most as many beginnings as the largest size has rows.
        """
        ...


class PendingProposals(Protocol):
    """Guesses that are being made."""

    def result(self) -> Proposals:
        """Wait until they are on the host."""
        ...


@runtime_checkable
class SharedProposer(Proposer, Protocol):
    """A Proposer that each of several hosts has; one of them reads the guesses."""

    def ask(self, beginnings: Sequence[Sequence[int]]) -> PendingProposals:
        """Launch what `propose` waits for; beginnings: as a message brings them, too."""
        ...
