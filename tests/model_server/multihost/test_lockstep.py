"""Hosts in lockstep: each is told what the primary does, in its order, or the primary knows."""

from __future__ import annotations

import threading
import time

import pytest
from msgspec.structs import replace

from model_server.disaggregation.handoff_runner import HandoffRunner
from model_server.engine.engine import Engine, EngineRequest, SequenceUpdate
from model_server.engine.limits import EngineLimits
from model_server.engine.running.ops import (
    Choose,
    DropPages,
    Encode,
    ExportPages,
    FetchPages,
    ForgetWeights,
    ImportPages,
    ReadAdapter,
    ReadWeights,
    WriteWeights,
)
from model_server.engine.types import PageGrant, Row, Sampling, SlotMask, Step
from model_server.engine.watchdog import StepHung
from model_server.multihost.commands import Do, Drop, Launch, ProgramCommand, encode
from model_server.multihost.lockstep import Lockstep
from sax.errors import CheckpointError, MemoryPlanError, ReplicaLost, Unavailable
from sax.types import Progress
from sax.weights import Pausing
from tests.model_server.engine.fake_runner import GREEDY, next_token
from tests.model_server.engine.fake_traffic import FakeTraffic
from tests.model_server.engine.media.fake_images import MEDIA, answer, request
from tests.model_server.multihost.hosts_here import LIMITS, SPEC, FakeShare, HostsHere
from tests.model_server.waiting import wait_until

pytestmark = pytest.mark.usefixtures("quick_hosts")


def load(hosts: HostsHere, limits: EngineLimits = LIMITS) -> tuple[Lockstep, FakeShare]:
    """A model on every host, and the primary's share of it."""
    built: list[FakeShare] = []

    def build(programs: object) -> FakeShare:
        built.append(FakeShare(limits))
        return built[0]

    lockstep = hosts.loads.load(SPEC, limits, build, lambda progress: None)  # pyright: ignore
    return lockstep, built[0]


def asked(prompt: tuple[int, ...], sampling: Sampling, most: int) -> EngineRequest:
    return EngineRequest(prompt=prompt, sampling=sampling, max_tokens=most, stop_ids=frozenset())


def test_every_host_is_told_the_same_steps_in_the_same_order() -> None:
    with HostsHere(4) as hosts:
        runners = [load(hosts) for _ in range(2)]
        arrived: list[SequenceUpdate] = []
        engines = [Engine(lockstep, arrived.extend) for lockstep, _ in runners]
        for engine in engines:
            for seed in range(6):
                engine.submit(asked((5, 8, seed), Sampling(1.0, 0, 1.0, seed=seed), 12))
        wait_until(lambda: sum(update.finish is not None for update in arrived) == 12)
        for engine in engines:
            assert engine.drain(60)
        told = [[own.told for own in hosts.shares[host]] for host in (1, 2, 3)]
        wait_until(lambda: all(len(t[0]) == len(runners[0][1].told) for t in told))
        wait_until(lambda: all(len(t[1]) == len(runners[1][1].told) for t in told))
        for index, (_, own) in enumerate(runners):
            assert own.told[:2] == [0, 1]  # warmed first
            assert len(own.told) > 12
            assert all(each[index] == own.told for each in told)
        for engine in engines:
            engine.close()


def test_tokens_are_those_of_one_host() -> None:
    with HostsHere(3) as hosts:
        lockstep, _ = load(hosts)
        arrived: list[SequenceUpdate] = []
        engine = Engine(lockstep, arrived.extend)
        engine.submit(asked((5, 8), GREEDY, 5))
        wait_until(lambda: any(update.finish for update in arrived))
        tokens = [5, 8]
        for _ in range(5):
            tokens.append(next_token(tokens))
        assert [update.result.token for update in arrived] == tokens[2:]
        engine.close()
        wait_until(lambda: all(shares[0].closed for shares in hosts.shares.values()))


def test_several_steps_are_launched_together_on_every_host() -> None:
    limits = replace(LIMITS, steps_per_launch=4)
    with HostsHere(3, build=lambda _, given: FakeShare(given)) as hosts:
        lockstep, own = load(hosts, limits)
        arrived: list[SequenceUpdate] = []
        engine = Engine(lockstep, arrived.extend)
        engine.submit(asked((5, 8), GREEDY, 20))
        wait_until(lambda: any(update.finish for update in arrived))
        assert engine.drain(60)
        others = [shares[0] for shares in hosts.shares.values()]
        wait_until(lambda: all(each.told == own.told for each in others))
        assert all(each.series == own.series > 2 for each in others)
        engine.close()


def test_masks_follow_their_step_on_every_host() -> None:
    with HostsHere(3) as hosts:
        lockstep, own = load(hosts)
        step = Step(1, (Row(1, 3, 0, (5, 8), True),), (PageGrant(3, 0, (4,)),), guided=True)
        mask = SlotMask(3, bytes([0, 0b1000]) + bytes(14))
        pending = lockstep.launch(step)
        lockstep.do(Choose((mask,)))
        assert pending.result()[0].rows[0].token == 11
        assert own.told[2:] == [step, Choose((mask,))]
        wait_until(lambda: all(each[0].told[2:] == own.told[2:] for each in hosts.shares.values()))


def test_every_host_encodes_the_same_images_between_the_same_steps() -> None:
    with HostsHere(3) as hosts:
        lockstep, own = load(hosts, replace(LIMITS, media=MEDIA))
        arrived: list[SequenceUpdate] = []
        engine = Engine(lockstep, arrived.extend)
        images = request([50, 51, 52], (5, 8), [53, 54], max_tokens=5)
        engine.submit(images)
        wait_until(lambda: any(update.finish for update in arrived))
        assert [update.result.token for update in arrived] == answer(images)
        assert any(isinstance(each, Encode) for each in own.told)
        wait_until(lambda: all(each[0].told == own.told for each in hosts.shares.values()))
        engine.close()


def test_pages_move_between_the_same_steps_on_every_host() -> None:
    with HostsHere(3) as hosts:
        lockstep, own = load(hosts)
        runner, key = HandoffRunner(lockstep, FakeTraffic()), 2**62 - 1
        runner.expect_import(1, key, token=17)
        runner.expect_export(2, 5)
        arrives, leaves = Row(1, 3, 5, (), True), Row(2, 0, 0, (7, 8), True)
        first = Step(1, (arrives, leaves), (PageGrant(3, 0, (9, 4)), PageGrant(0, 0, (6,))))
        last = Step(2, (Row(1, 3, 6, (), True),))
        for step in (first, last):
            runner.launch(step).result()
        arrived = ImportPages(key, (9, 4), (), 3, 17)
        told = [arrived, first, ExportPages(5, (6,), ()), last]
        assert own.told[2:] == told
        wait_until(lambda: all(each[0].told[2:] == told for each in hosts.shares.values()))


def test_a_primary_that_gives_up_ends_every_host_with_its_reason() -> None:
    told: list[ReplicaLost] = []
    with HostsHere(3) as hosts:
        hosts.primary.on_loss = told.append
        runner, _ = load(hosts)
        hung = StepHung("step 7 did not finish within 30 s")
        hosts.primary.give_up(hung)
        hosts.primary.give_up(ReplicaLost("too late"))
        (error,) = told
        assert isinstance(error, StepHung)
        assert error.text.startswith(hung.text)  # which hosts are behind is known within a beat
        with pytest.raises(ReplicaLost, match="step 7 did not finish"):
            runner.launch(Step(1, (Row(1, 3, 0, (4,), True),)))
        wait_until(lambda: len(hosts.ended) == 2)
    assert all("step 7 did not finish" in str(reason) for reason in hosts.ended.values())


def test_a_host_that_cannot_load_is_named_and_all_free_what_they_have() -> None:
    def build(ordinal: int, limits: EngineLimits) -> FakeShare:
        if ordinal == 2:
            raise MemoryPlanError("there is room for 3 KV pages")
        return FakeShare(limits)

    with HostsHere(4, build=build) as hosts:
        with pytest.raises(MemoryPlanError, match=r"host 2 \(node-2\): there is room for 3 KV"):
            load(hosts)
        wait_until(lambda: all(share.closed for each in hosts.shares.values() for share in each))


def test_a_load_that_is_cancelled_on_the_primary_ends_everywhere() -> None:
    class Stop(BaseException):
        pass

    slow = threading.Event()

    def build(ordinal: int, limits: EngineLimits) -> FakeShare:
        slow.wait(60)
        return FakeShare(limits)

    def report(progress: Progress) -> None:
        if "waiting for host" in progress.phase:
            assert "node-1" in progress.phase
            raise Stop

    own = FakeShare(LIMITS)
    with HostsHere(2, build=build) as hosts:
        with pytest.raises(Stop):
            hosts.loads.load(SPEC, LIMITS, lambda programs: own, report)  # pyright: ignore
        assert own.closed
        slow.set()
        wait_until(lambda: hosts.shares[1] and hosts.shares[1][0].closed)


def test_an_awaited_op_reaches_every_host_and_its_failure_names_one() -> None:
    with HostsHere(3) as hosts:
        lockstep, own = load(hosts)
        lockstep.do(read := ReadAdapter("k1", "hello")).result()
        assert own.told[-1] == read
        assert all(shares[0].told[-1] == read for shares in hosts.shares.values())

        def refuse(op: ReadAdapter | ReadWeights) -> None:
            raise Unavailable("no such page")

        hosts.shares[2][0].read = refuse  # type: ignore[method-assign]
        with pytest.raises(Unavailable, match=r"host 2 \(node-2\): no such page"):
            lockstep.do(ReadAdapter("k2", "again")).result()


def test_new_weights_are_in_place_before_the_same_step_on_every_host_or_on_none() -> None:
    with HostsHere(3) as hosts:
        lockstep, own = load(hosts)
        shares = [own, *(shares[0] for shares in hosts.shares.values())]
        arrived: list[SequenceUpdate] = []
        engine = Engine(lockstep, arrived.extend)
        for seed in range(asks := 32):  # enough steps for the write to come between two
            engine.submit(asked((5, 8, seed), GREEDY, 40))
        wait_until(lambda: len(arrived) > 9)
        lockstep.do(ReadWeights("new", "/new", False)).result()
        write = WriteWeights("new")
        engine.pauses.between(lambda: lockstep.do(write).result(), Pausing.KEEP).result(60)
        assert engine.drain(60)
        assert [update.finish for update in arrived if update.finish] == ["length"] * asks

        def in_order(share: FakeShare) -> list[object]:
            return [op for op in share.told if not isinstance(op, ReadWeights)]

        assert 4 < in_order(own).index(write) < len(in_order(own)) - 1, "between two steps"
        wait_until(lambda: all(in_order(each) == in_order(own) for each in shares))

        def refuse(op: ReadAdapter | ReadWeights) -> None:
            raise CheckpointError("model.safetensors is truncated")

        shares[2].read = refuse  # type: ignore[method-assign]
        with pytest.raises(Unavailable, match=r"host 2 \(node-2\): model.safetensors is truncated"):
            lockstep.do(ReadWeights("torn", "/torn", False)).result()
        lockstep.do(ForgetWeights("torn")).result()
        wait_until(lambda: all(each.told[-1] == ForgetWeights("torn") for each in shares))
        assert {each.weights for each in shares} == {"new"}
        engine.close()


def test_what_comes_too_late_for_a_model_harms_nobody() -> None:
    with HostsHere(2) as hosts:
        lockstep, own = load(hosts)
        for late in (Do(99, DropPages(1)), ProgramCommand(99, "step", b""), Drop(99)):
            hosts.primary.publish(late)
        number = hosts.primary.ask(99, FetchPages(1, 2, 0, ("a", "b"), 5.0))
        (reply,) = hosts.primary.replies(number, 60)
        assert "no such model" in reply.reason
        lockstep.do(read := ReadAdapter("k", "still here")).result()
        assert own.told[-1] == hosts.shares[1][0].told[-1] == read


def test_a_command_may_be_of_any_length() -> None:
    with HostsHere(2) as hosts:
        lockstep, _ = load(hosts)
        words = "x" * 50_000_000
        lockstep.do(read := ReadAdapter("long", words)).result()
        assert hosts.shares[1][0].told[-1] == read


def test_a_host_whose_runner_breaks_says_why() -> None:
    def build(ordinal: int, limits: EngineLimits) -> FakeShare:
        share = FakeShare(limits)
        share.fail_launch = 1
        return share

    with HostsHere(2, build=build) as hosts:
        lost: list[ReplicaLost] = []
        hosts.primary.on_loss = lost.append
        lockstep, _ = load(hosts)
        lockstep.launch(Step(1, ()))
        wait_until(lambda: lost)
        assert "host 1 (node-1)" in lost[0].text
        assert "launch 1" in lost[0].text
        with pytest.raises(ReplicaLost, match="host 1"):
            lockstep.launch(Step(2, ()))


def test_a_silent_host_is_lost_and_whoever_waits_hears_of_it() -> None:
    with HostsHere(3, timeout_s=6.0) as hosts:  # other hosts may be slow on a busy machine
        lockstep, _ = load(hosts)
        hosts.secondaries[2]._answers.send = lambda answer: None  # type: ignore[method-assign]
        heartbeat = hosts.primary._heartbeat
        assert heartbeat is not None
        long_ago_s = time.monotonic() - 6
        threading.Timer(0.2, heartbeat.heard, (2, 0, long_ago_s)).start()
        with pytest.raises(ReplicaLost, match=r"host 2 \(node-2\) .* no heartbeat"):
            lockstep.do(ReadAdapter("k", "anyone?")).result()


def test_a_host_that_was_told_to_stop_tells_the_primary() -> None:
    with HostsHere(3) as hosts:
        told: list[str] = []
        hosts.primary.on_leaving = told.append
        hosts.secondaries[2].leave()
        wait_until(lambda: told == ["host 2 (node-2)"])
    assert hosts.ended == {1: None, 2: None}  # the primary's Bye ends them


def test_a_step_of_sixty_four_decodes_is_small() -> None:
    rows = tuple(Row(10**6 + slot, slot, 30_000 + slot, (), True) for slot in range(64))
    assert len(encode(Launch(1, (Step(10**6, rows),)))) <= 4096
