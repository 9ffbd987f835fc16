"""The bookkeeping of servers: who is there, what is under way, what failed."""

import random
from dataclasses import replace

from admin_server.assignment.failures import Failures, backoff_s
from admin_server.assignment.seen import LoadAction, UnloadAction, UpdateAcls
from admin_server.assignment.servers import Servers
from admin_server.ledger.state import CellState
from sax.types import ModelSpec, ServableInfo, ServableStatus, ServerInfo, ServerStatus

A, B, C, M = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "/sax/test/m"
V = "1" * 32
SPEC = ModelSpec(model_id=M, model_path="x", checkpoint="c", replicas=1, version=V)


def joined(*addresses: str, incarnation: str = "one") -> Servers:
    servers = Servers(silence_s=10, jitter=random.Random(0))
    for address in addresses:
        servers.join(ServerInfo(address=address, incarnation=incarnation), 0)
    return servers


def status(state: ServableStatus | None = None, incarnation: str = "one") -> ServerStatus:
    held = (
        () if state is None else (ServableInfo(model_id=M, status=state, version=V, reason="why"),)
    )
    return ServerStatus(held, incarnation)


def test_a_silent_server_is_dropped_and_the_reason_names_it():
    servers = joined(A, B)
    servers.missed(A, "refused")
    servers.saw(B, status(), 5, 5)
    assert servers.prune(9.9) == []
    assert servers.prune(10) == [A]
    (gone,) = servers.view().gone
    assert gone == "a server was dropped at 00:00:10 UTC after 10 s of silence"
    assert list(servers.view().servers) == [B]


def test_a_dropped_server_that_joins_again_is_no_reason_any_more():
    servers = joined(A)
    servers.prune(10)
    servers.join(ServerInfo(address=A), 11)
    assert servers.view().gone == ()


def test_a_server_that_leaves_is_forgotten_and_the_reason_names_it():
    servers = joined(A, B)
    assert not servers.leave(A, "zero", 5)
    assert servers.leave(A, "one", 5)
    assert not servers.leave(A, "one", 6)
    assert servers.view().gone == ("a server began to shut down at 00:00:05 UTC",)
    assert list(servers.view().servers) == [B]
    assert servers.has_left(A, "one")
    assert not servers.has_left(A, "two")


def test_idle_servers_of_machines_that_are_gone_are_dropped_and_the_reason_names_none():
    servers = Servers(silence_s=10, jitter=random.Random(0))
    for address, tag in ((A, "set:a"), (B, "set:a"), (C, "set:b")):
        servers.join(ServerInfo(address=address, incarnation="one", tags=("x", tag)), 0)
    servers.saw(B, status(ServableStatus.LOADED), 0, 0)
    assert servers.drop_idle(frozenset(), 5) == []
    assert servers.drop_idle(frozenset({"set:a"}), 5) == [A]
    assert list(servers.view().servers) == [B, C]
    assert servers.view().gone == ("a server was dropped at 00:00:05 UTC with its machines",)
    servers.saw(B, status(), 6, 6)
    servers.begin(LoadAction(B, SPEC))
    assert servers.drop_idle(frozenset({"set:a"}), 6) == []


def test_a_server_that_may_still_hold_a_model_is_not_dropped_with_its_machines():
    servers = Servers(silence_s=10, jitter=random.Random(0))
    servers.restore([ServerInfo(address=A, tags=("set:a",))], [M], 0)
    assert servers.drop_idle(frozenset({"set:a"}), 5) == []
    servers.saw(A, status(), 6, 6)
    assert servers.drop_idle(frozenset({"set:a"}), 7) == [A]


def test_a_heartbeat_of_the_same_start_forgets_nothing():
    servers = joined(A)
    servers.begin(LoadAction(A, SPEC))
    assert not servers.join(ServerInfo(address=A, incarnation="one"), 1)
    assert (A, M) in servers.view().pending


def test_a_join_of_another_start_forgets_what_was_under_way_and_what_was_held():
    servers = joined(A)
    servers.saw(A, status(ServableStatus.LOADED), 0, 0)
    servers.begin(LoadAction(A, SPEC))
    assert servers.join(ServerInfo(address=A, incarnation="two"), 1)
    assert servers.view().pending == {}
    assert servers.view().servers[A].joined.servables == ()


def test_a_status_of_another_start_forgets_what_was_under_way():
    servers = joined(A)
    servers.begin(LoadAction(A, SPEC))
    assert servers.saw(A, status(incarnation="two"), 1, 1)
    assert servers.view().pending == {}


def test_an_action_counts_until_a_status_that_was_asked_for_after_it_was_done():
    servers, load = joined(A), LoadAction(A, SPEC)
    servers.begin(load)
    servers.saw(A, status(), 1, 2)
    servers.finish(load, None, 3)
    servers.saw(A, status(), 2.9, 4)  # asked for too early to know
    assert servers.view().pending == {(A, M): (load,)}
    servers.saw(A, status(ServableStatus.LOADED), 3.1, 5)
    assert servers.view().pending == {}


def test_an_unload_that_failed_is_left_alone_for_a_while():
    servers, unload = joined(A), UnloadAction(A, M, "why")
    servers.begin(unload)
    servers.finish(unload, "it broke", 0)
    servers.saw(A, status(ServableStatus.LOADED), 4, 4)
    assert servers.view().pending
    servers.saw(A, status(ServableStatus.LOADED), 5.1, 5.1)
    assert not servers.view().pending


def test_a_failure_is_counted_once_until_it_is_tried_again():
    servers, load = joined(A), LoadAction(A, SPEC)
    servers.begin(load)
    servers.finish(load, "it broke", 0)
    for now in (1, 2, 3):
        servers.saw(A, status(ServableStatus.FAILED), now, now)
    first = servers.view().failures[A, M]
    assert (first.count, first.reason) == (1, "it broke")
    servers.begin(load)
    servers.finish(load, "it broke again", 10)
    assert servers.view().failures[A, M].count == 2


def test_a_model_that_failed_by_itself_is_noticed():
    servers = joined(A)
    servers.saw(A, status(ServableStatus.FAILED), 1, 1)
    assert servers.view().failures[A, M].reason == "why"


def test_a_load_that_worked_clears_the_failures_before_it():
    servers = joined(A)
    servers.saw(A, status(ServableStatus.FAILED), 1, 1)
    servers.saw(A, status(ServableStatus.LOADED), 2, 2)
    assert servers.view().failures == {}


def test_failures_of_a_version_that_nobody_wants_are_forgotten():
    servers = joined(A)
    servers.saw(A, status(ServableStatus.FAILED), 1, 1)
    servers.forget_failures(CellState("/sax/test", {M: SPEC}))
    assert servers.view().failures
    servers.forget_failures(CellState("/sax/test"))
    assert servers.view().failures == {}


def test_a_load_that_fails_again_and_again_is_tried_every_ten_minutes():
    failures, place, waits = Failures(random.Random(1)), ("a:1", M), list[float]()
    for _ in range(14):
        failures.fail(place, "v", "no such file", 0.0)
        waits.append(failures.all()[place].next_try_s)
        failures.retry(place)
    assert waits[0] < 2 < waits[2] < 6
    assert all(480 <= wait <= 720 for wait in waits[-3:])


def test_waits_between_tries_double_up_to_a_minute():
    assert [backoff_s(count, 1.0) for count in (1, 2, 3, 7, 8, 1000)] == [1, 2, 4, 60, 60, 60]


def test_restored_servers_are_known_but_unanswered_and_may_hold_what_was_published():
    servers = Servers(silence_s=10, jitter=random.Random(0))
    servers.restore([ServerInfo(address=A), ServerInfo(address=B)], [M], 5)
    view = servers.view().servers
    assert [(s.answered, s.may_hold) for s in view.values()] == [(False, {M}), (False, {M})]
    servers.saw(A, status(), 6, 6)
    after = servers.view().servers[A]
    assert (after.answered, after.may_hold) == (True, frozenset())
    assert servers.prune(14.9) == []
    assert servers.prune(15) == [B]  # its silence counts from the takeover


def test_a_restored_server_that_was_started_anew_meanwhile_holds_nothing():
    servers = Servers(silence_s=10, jitter=random.Random(0))
    servers.restore([ServerInfo(address=A, incarnation="one")], [M], 0)
    assert not servers.join(ServerInfo(address=A, incarnation="one"), 1)
    assert servers.view().servers[A].may_hold == {M}
    assert servers.join(ServerInfo(address=A, incarnation="two"), 2)
    assert servers.view().servers[A].may_hold == frozenset()


def test_a_server_that_joined_before_the_roster_was_read_stays_as_it_is():
    servers = joined(A)
    servers.saw(A, status(ServableStatus.LOADED), 1, 1)
    servers.restore([ServerInfo(address=A, incarnation="old")], [M], 2)
    assert servers.view().servers[A].answered


def test_servers_share_the_tuple_of_their_paths():
    servers = Servers(silence_s=10, jitter=random.Random(0))
    paths = ["x", "y"]
    for address in (A, B):
        servers.join(ServerInfo(address=address, model_paths=tuple(paths)), 0)
    first, second = servers.infos()
    assert first.model_paths is second.model_paths


def test_only_what_a_plan_depends_on_counts_as_a_change():
    servers = joined(A)
    loaded = ServableInfo(model_id=M, status=ServableStatus.LOADED, version=V)
    servers.saw(A, ServerStatus((loaded,), "one"), 1, 1)
    before = servers.changes
    servers.join(ServerInfo(address=A, incarnation="one"), 2)
    servers.saw(A, ServerStatus((replace(loaded, running=7, queued=3),), "one", 0, 99), 3, 3)
    assert servers.changes == before
    assert servers.view().servers[A].joined.servables[0].running == 7
    servers.saw(A, ServerStatus((replace(loaded, memory=5),), "one"), 4, 4)
    assert servers.changes > before


def test_one_model_keeps_a_bounded_number_of_failures():
    servers = joined(*(f"h{n}:1" for n in range(100)))
    for n in range(100):
        servers.saw(f"h{n}:1", status(ServableStatus.FAILED), n, n)
    kept = servers.view().failures
    assert len(kept) == 32
    assert ("h99:1", M) in kept
    assert kept["h99:1", M].count == 100


def pushed(servers: Servers, error: str | None, now: float) -> None:
    action = UpdateAcls(A, replace(SPEC, acls={"lm.generate": "ana"}))
    servers.begin(action)
    servers.finish(action, error, now)


def holding(**more) -> ServerStatus:
    held = ServableInfo(model_id=M, status=ServableStatus.LOADED, version=V, **more)
    return ServerStatus((held,), "one")


def test_lists_that_a_server_refuses_are_sent_again_later_and_later():
    servers = joined(A)
    servers.saw(A, holding(), 0, 0)
    pauses = []
    for now in (10, 20, 30):
        pushed(servers, "no such method", now)
        servers.saw(A, holding(), now + 1, now + 1)
        push = servers.view().pushes[A, M]
        assert push.reason == "no such method"
        pauses.append(push.next_try_s - now)
    assert pauses[0] < pauses[1] < pauses[2]


def test_lists_that_a_server_reports_need_no_remembering():
    servers = joined(A)
    pushed(servers, None, 1)
    assert servers.view().pushes[A, M].reason == ""
    servers.saw(A, holding(acls={"lm.generate": "ana"}), 2, 2)
    assert servers.view().pushes == {}


def test_lists_are_forgotten_with_the_model_they_were_for():
    servers = joined(A)
    pushed(servers, None, 1)
    servers.saw(A, status(), 2, 2)
    assert servers.view().pushes == {}
