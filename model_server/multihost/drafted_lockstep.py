"""A runner with a draft model on several hosts: all of them guess, and the primary reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from model_server.engine.guessing.proposals import Beginning, Proposals, SharedProposer
from model_server.engine.types import HeldRunner
from model_server.multihost.commands import Perform
from model_server.multihost.lockstep import Lockstep
from model_server.multihost.primary import Primary


class DraftedLockstep(Lockstep):
    """A Lockstep that is also a `guessing.proposals.Proposer`."""

    def __init__(
        self,
        runner: HeldRunner,
        servable: int,
        hosts: Primary,
        offers: Sequence[str] = (),
        *,
        proposer: SharedProposer,
    ) -> None:
        """proposer: the runner itself."""
        super().__init__(runner, servable, hosts, offers)
        self._proposer = proposer

    @property
    def guess_seconds(self) -> Mapping[int, float]:
        return self._proposer.guess_seconds

    def propose(self, beginnings: Sequence[Beginning]) -> Proposals:
        """As `Proposer.propose`, on every host between the same two steps."""
        with self._hosts.order:
            self._hosts.publish(Perform(self.servable, "ask", (tuple(beginnings),)))
            asked = self._proposer.ask(beginnings)
        try:
            return asked.result()
        except Exception:
            self._hosts.wait_for_loss()
            raise


def lockstep_of(
    runner: HeldRunner, servable: int, hosts: Primary, offers: Sequence[str]
) -> Lockstep:
    """Return the primary's runner, which guesses if this host's does."""
    if isinstance(runner, SharedProposer):
        return DraftedLockstep(runner, servable, hosts, offers, proposer=runner)
    return Lockstep(runner, servable, hosts, offers)
