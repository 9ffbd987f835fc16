"""Hosts with a draft model: each is asked for guesses when the primary is, and one reads them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from model_server.engine.engine import Engine, EngineRequest, SequenceUpdate
from model_server.engine.guessing.proposals import Beginning, Proposals, Proposer
from model_server.engine.types import EngineLimits
from model_server.multihost.lockstep import Lockstep
from tests.model_server.engine.fake_runner import GREEDY, next_token
from tests.model_server.engine.guessing.fake_drafted_runner import FakeDraftedRunner
from tests.model_server.multihost.hosts_here import LIMITS, SPEC, FakeShare, HostsHere
from tests.model_server.waiting import wait_until

pytestmark = pytest.mark.usefixtures("quick_hosts")


class _Asked:
    """Guesses that are made when they are read: on the primary alone, no step is in flight."""

    def __init__(self, share: DraftedShare, beginnings: list[Beginning]) -> None:
        self._share = share
        self._beginnings = beginnings

    def result(self) -> Proposals:
        self._share.read += 1
        return self._share.propose(self._beginnings)


class DraftedShare(FakeDraftedRunner, FakeShare):
    """What one host holds of a model and its draft model."""

    def __init__(self, limits: EngineLimits) -> None:
        super().__init__(limits)
        self.read = 0

    def ask(self, beginnings: Sequence[Sequence[int]]) -> _Asked:
        asked = [Beginning(*each) for each in beginnings]
        self.told.append(asked)
        return _Asked(self, asked)


def load(hosts: HostsHere, own: FakeShare) -> Lockstep:
    return hosts.loads.load(SPEC, own.limits, lambda programs: own, lambda progress: None)  # pyright: ignore


def test_every_host_is_asked_for_the_same_guesses_between_the_same_steps() -> None:
    limits = replace(LIMITS, guesses=4)
    with HostsHere(3, build=lambda _, given: DraftedShare(given)) as hosts:
        own = DraftedShare(limits)
        lockstep = load(hosts, own)
        arrived: list[SequenceUpdate] = []
        engine = Engine(lockstep, arrived.extend)
        request = EngineRequest(prompt=(5, 8), sampling=GREEDY, max_tokens=40, stop_ids=frozenset())
        engine.submit(request)
        wait_until(lambda: any(update.finish for update in arrived))
        tokens = [5, 8]
        for _ in range(40):
            tokens.append(next_token(tokens))
        assert [update.result.token for update in arrived] == tokens[2:]
        assert engine.drain(60)
        others = [hosts.shares[host][0] for host in (1, 2)]
        wait_until(lambda: all(len(each.told) == len(own.told) for each in others))
        assert all(each.told == own.told for each in others)
        asked = [told for told in own.told if isinstance(told, list)]
        assert own.read == len(asked) > 1
        assert all(isinstance(each, DraftedShare) and each.read == 0 for each in others)
        assert engine.stats().guesses_accepted > 0
        engine.close()


def test_only_a_model_with_a_draft_model_is_asked_for_guesses() -> None:
    with HostsHere(2) as hosts:
        assert isinstance(load(hosts, DraftedShare(LIMITS)), Proposer)
        assert not isinstance(load(hosts, FakeShare(LIMITS)), Proposer)
