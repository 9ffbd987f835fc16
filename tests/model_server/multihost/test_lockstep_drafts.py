"""Hosts with a draft model: each drafts when the primary does, and one reads the tokens."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from model_server.engine.engine import Engine, EngineRequest, SequenceUpdate
from model_server.engine.limits import EngineLimits
from model_server.engine.running.ops import Op, Proposals, Propose
from model_server.multihost.lockstep import Lockstep
from tests.model_server.engine.drafting.fake_drafted_runner import FakeDraftedRunner
from tests.model_server.engine.fake_runner import GREEDY, next_token
from tests.model_server.multihost.hosts_here import LIMITS, SPEC, FakeShare, HostsHere
from tests.model_server.waiting import wait_until

pytestmark = pytest.mark.usefixtures("quick_hosts")


class DraftedShare(FakeDraftedRunner, FakeShare):
    """What one host holds of a model and its draft model."""

    def __init__(self, limits: EngineLimits) -> None:
        super().__init__(limits)
        self.drafted = 0  # times that its draft tokens were read

    def do(self, op: Op) -> Any:
        if isinstance(op, Propose):
            self.told.append(op)
        return super().do(op)

    def propose(self, op: Propose) -> Proposals:
        self.drafted += 1
        return super().propose(op)


def load(hosts: HostsHere, own: FakeShare) -> Lockstep:
    return hosts.loads.load(SPEC, own.limits, lambda programs: own, lambda progress: None)  # pyright: ignore


def test_every_host_is_asked_for_the_same_draft_tokens_between_the_same_steps() -> None:
    limits = replace(LIMITS, draft_tokens=4)
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
        asked = [told for told in own.told if isinstance(told, Propose)]
        assert own.drafted == len(asked) > 1
        assert all(isinstance(each, DraftedShare) and each.drafted == 0 for each in others)
        assert engine.stats().draft_tokens_accepted > 0
        engine.close()


def test_only_a_model_with_a_draft_model_is_asked_for_draft_tokens() -> None:
    with HostsHere(2) as hosts:
        assert Propose in load(hosts, DraftedShare(LIMITS)).ops
        assert Propose not in load(hosts, FakeShare(LIMITS)).ops
