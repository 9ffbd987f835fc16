"""A HandoffRunner whose runner has a draft model, and the choice between the two kinds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from model_server.disaggregation.handoff_runner import HandoffRunner, MovableRunner
from model_server.disaggregation.transfers import Transfers
from model_server.engine.guessing.proposals import Beginning, Proposals, Proposer


class DraftedHandoffRunner(HandoffRunner):
    """A HandoffRunner that is also a `Proposer`: the runner imports and exports for both models."""

    def __init__(self, runner: MovableRunner, transfers: Transfers, proposer: Proposer) -> None:
        """proposer: the runner, as that."""
        super().__init__(runner, transfers)
        self._proposer = proposer

    @property
    def guess_seconds(self) -> Mapping[int, float]:
        return self._proposer.guess_seconds

    def propose(self, beginnings: Sequence[Beginning]) -> Proposals:
        """As `Proposer.propose`."""
        return self._proposer.propose(beginnings)


def handoff_runner(runner: MovableRunner, transfers: Transfers) -> HandoffRunner:
    """Return what hands over the pages of this runner; a Proposer if the runner is one."""
    if isinstance(runner, Proposer):
        return DraftedHandoffRunner(runner, transfers, runner)
    return HandoffRunner(runner, transfers)
