"""The planner: single decisions, and a whole cell played through at random.

The cell of the random play is arithmetic: a load takes as many ticks as the play says, and every
server answers GetStatus at every tick.
"""

import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admin_server.assignment.canaries import variants
from admin_server.assignment.plan import CellActions, plan_actions
from admin_server.assignment.seen import (
    AclPush,
    Action,
    Failure,
    LoadAction,
    Seen,
    SeenServer,
    UnloadAction,
    UpdateAcls,
)
from admin_server.assignment.servers import Servers
from admin_server.ledger.state import CellState
from sax.canary import canary_replicas, canary_spec, replicas_with_canary
from sax.types import (
    Canary,
    JoinedServer,
    ModelSpec,
    Placement,
    Progress,
    ServableInfo,
    ServableStatus,
    ServerInfo,
    ServerStatus,
    static_version,
)

A, B, C = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"
M = "/sax/test/m"
OLD, NEW = "0" * 32, "1" * 32
S = ServableStatus


def spec(model_id: str = M, *, replicas: int = 1, version: str = NEW, path: str = "x") -> ModelSpec:
    return ModelSpec(
        model_id=model_id, model_path=path, checkpoint="c", replicas=replicas, version=version
    )


def cell(*specs: ModelSpec) -> CellState:
    return CellState("/sax/test", {one.model_id: one for one in specs})


def holds(status: S, version: str = NEW, model_id: str = M, **more) -> ServableInfo:
    return ServableInfo(model_id=model_id, status=status, version=version, **more)


def seen(servers: dict[str, list[ServableInfo]], **more) -> Seen:
    return Seen(
        {
            address: SeenServer(
                JoinedServer(ServerInfo(address=address, model_paths=("x",)), 0.0, tuple(held))
            )
            for address, held in servers.items()
        },
        **more,
    )


def only(model_report) -> tuple[str, S, str]:
    (replica,) = model_report.replicas
    return replica.address, replica.status, replica.reason


def test_a_retry_that_begins_with_an_unload_still_says_what_went_wrong():
    state = seen({A: [holds(S.UNLOADING)]}, failures={(A, M): Failure(NEW, 1, "no such file", 5.0)})
    _, status, reason = only(plan_actions(cell(spec()), state, 9).models[M])
    assert status is S.UNLOADING
    assert "no such file" in reason


def test_a_published_model_is_loaded_on_a_server_that_serves_its_path():
    plan = plan_actions(cell(spec()), seen({A: []}), 0)
    assert plan.actions == (LoadAction(A, spec()),)


def test_a_loaded_model_is_left_alone_and_is_ready():
    plan = plan_actions(cell(spec()), seen({A: [holds(S.LOADED)]}), 0)
    assert plan.actions == ()
    assert plan.models[M].ready == {A}
    assert plan.models[M].current == 1


def test_a_ready_replica_shows_what_its_server_notes_of_it():
    noted = seen({A: [holds(S.LOADED, note="samples")], B: [holds(S.LOADED)]})
    for wanted in (2, 3):  # the model is settled, or waits for another server
        replicas = plan_actions(cell(spec(replicas=wanted)), noted, 9).models[M].replicas
        notes = {replica.address: replica.note for replica in replicas}
        assert (notes[A], notes[B]) == ("samples", "")


def test_a_model_that_nobody_published_is_unloaded():
    plan = plan_actions(cell(), seen({A: [holds(S.LOADED)]}), 0)
    assert plan.actions == (UnloadAction(A, M, "it is no longer published"),)


def test_a_replica_that_is_about_to_be_unloaded_is_not_ready_any_more():
    plan = plan_actions(cell(spec(replicas=0)), seen({A: [holds(S.LOADED)]}), 0)
    assert isinstance(plan.actions[0], UnloadAction)
    assert plan.models[M].ready == frozenset()


def test_nothing_is_done_twice_while_a_call_is_under_way():
    load = LoadAction(A, spec())
    plan = plan_actions(cell(spec()), seen({A: []}, pending={(A, M): (load,)}), 0)
    assert plan.actions == ()
    assert only(plan.models[M]) == (A, S.LOADING, "loading")


def test_a_model_unpublished_while_it_loads_is_unloaded_at_once():
    load = LoadAction(A, spec())
    plan = plan_actions(cell(), seen({A: []}, pending={(A, M): (load,)}), 0)
    assert [type(action) for action in plan.actions] == [UnloadAction]


def test_a_server_loads_one_model_at_a_time_and_the_other_says_what_it_waits_for():
    other = spec("/sax/test/n")
    pending = {(A, M): (LoadAction(A, spec()),)}
    plan = plan_actions(cell(spec(), other), seen({A: []}, pending=pending), 0)
    assert plan.actions == ()
    assert only(plan.models["/sax/test/n"])[2] == f"waiting for {A} to finish with {M}"


def test_the_progress_of_a_load_is_told_in_words():
    loading = holds(S.LOADING, progress=Progress("compiling bucket", 3, 8))
    plan = plan_actions(cell(spec()), seen({A: [loading]}), 0)
    assert only(plan.models[M])[2] == "loading: compiling bucket 3 of 8"


def test_a_failed_load_waits_for_its_retry_and_says_when_it_is():
    failure = Failure(NEW, 2, "no such file", 3723.0)
    there = seen({A: [holds(S.FAILED, reason="no such file")]}, failures={(A, M): failure})
    plan = plan_actions(cell(spec()), there, 3722)
    assert plan.actions == ()
    assert only(plan.models[M])[1:] == (
        S.FAILED,
        "load failed: no such file; retry 2 at 01:02:03 UTC",
    )


def test_a_failed_load_is_unloaded_and_then_loaded_when_its_time_has_come():
    failure = Failure(NEW, 1, "no such file", 10.0)
    there = seen({A: [holds(S.FAILED)]}, failures={(A, M): failure})
    assert plan_actions(cell(spec()), there, 10).actions == (
        UnloadAction(A, M, "to retry the load that failed"),
    )
    gone = seen({A: []}, failures={(A, M): failure})
    assert plan_actions(cell(spec()), gone, 10).actions == (LoadAction(A, spec()),)


def test_a_failed_load_moves_to_a_server_that_has_not_failed_when_its_time_has_come():
    failure = Failure(NEW, 1, "no memory", 10.0)
    there = seen({A: [holds(S.FAILED)], B: []}, failures={(A, M): failure})
    assert plan_actions(cell(spec()), there, 9).actions == ()
    assert LoadAction(B, spec()) in plan_actions(cell(spec()), there, 10).actions


def test_an_update_on_the_only_server_reloads_in_place():
    plan = plan_actions(cell(spec()), seen({A: [holds(S.LOADED, OLD)]}), 0)
    assert plan.actions == (UnloadAction(A, M, "it was updated"),)


def test_an_update_with_a_second_server_loads_there_first():
    plan = plan_actions(cell(spec()), seen({A: [holds(S.LOADED, OLD)], B: []}), 0)
    assert plan.actions == (LoadAction(B, spec()),)
    assert plan.models[M].ready == {A}
    assert plan.models[M].current == 0


def test_the_old_version_goes_once_the_new_one_is_ready_elsewhere():
    there = seen({A: [holds(S.LOADED, OLD)], B: [holds(S.LOADED)]})
    plan = plan_actions(cell(spec()), there, 0)
    assert [(action.address, type(action)) for action in plan.actions] == [(A, UnloadAction)]
    assert plan.models[M].ready == {B}


def test_two_replicas_are_updated_one_after_the_other():
    old = [holds(S.LOADED, OLD)]
    both = plan_actions(cell(spec(replicas=2)), seen({A: old, B: old}), 0)
    assert [(action.address, type(action)) for action in both.actions] == [(A, UnloadAction)]
    loading = seen({A: [holds(S.LOADING)], B: old})
    assert plan_actions(cell(spec(replicas=2)), loading, 0).actions == ()
    half = seen({A: [holds(S.LOADED)], B: old})
    second = plan_actions(cell(spec(replicas=2)), half, 0)
    assert [(action.address, type(action)) for action in second.actions] == [(B, UnloadAction)]


def test_a_server_that_offers_the_path_no_longer_serves_until_another_is_ready():
    there = seen({A: [holds(S.LOADED)], B: [holds(S.LOADING)]})
    info = ServerInfo(address=A, model_paths=("y",))
    changed = SeenServer(replace(there.servers[A].joined, info=info))
    plan = plan_actions(cell(spec()), Seen({**there.servers, A: changed}), 0)
    assert plan.actions == ()
    assert plan.models[M].ready == {A}
    ready = Seen({**seen({B: [holds(S.LOADED)]}).servers, A: changed})
    assert [action.address for action in plan_actions(cell(spec()), ready, 0).actions] == [A]


def test_a_server_that_does_not_tell_versions_is_taken_to_have_the_right_one():
    assert plan_actions(cell(spec()), seen({A: [holds(S.LOADED, "")]}), 0).actions == ()


def own(**changes) -> ServableInfo:
    """What a server loaded by its own flags, made as the published model is but for `changes`."""
    version = static_version(replace(spec(), **changes))
    return holds(S.LOADED, version, own=True)


def test_a_model_that_a_server_loaded_by_its_own_flags_stays_there():
    state = seen({A: [own()], B: []})
    assert plan_actions(cell(), state, 0).actions == ()
    (load,) = plan_actions(cell(spec(model_id="/sax/test/n")), state, 0).actions
    assert isinstance(load, LoadAction)


def test_a_published_model_is_ready_where_a_server_loaded_the_same_by_its_own_flags():
    placed = replace(spec(), overrides={"constraints": '""'})
    for one in (spec(), placed):
        plan = plan_actions(cell(one), seen({A: [own()]}), 0)
        assert plan.actions == ()
        assert only(plan.models[M]) == (A, S.LOADED, "")


def test_a_second_server_keeps_what_it_loaded_by_its_own_flags():
    assert plan_actions(cell(spec()), seen({A: [own()], B: [own()]}), 0).actions == ()


def test_another_model_of_that_name_takes_its_place_once_it_is_published():
    plan = plan_actions(cell(spec()), seen({A: [own(checkpoint="other")]}), 0)
    assert plan.actions == (UnloadAction(A, M, "it was updated"),)


def test_nothing_is_moved_before_the_servers_had_time_to_come_back():
    plan = plan_actions(cell(spec()), seen({A: []}), 0, acting=False)
    assert plan.actions == ()


@pytest.mark.parametrize(
    ("servers", "reason"),
    [
        ({}, "no model server has joined this cell"),
        (
            {A: SeenServer(JoinedServer(ServerInfo(address=A), 0.0), False, "refused")},
            f"{A} has joined but has not answered yet (refused)",
        ),
        (
            {A: SeenServer(JoinedServer(ServerInfo(address=A, model_paths=("y",)), 0.0))},
            "no joined server serves x; they serve y; B was dropped",
        ),
    ],
)
def test_a_replica_without_a_server_says_why(servers, reason):
    gone = ("B was dropped",) if "B was" in reason else ()
    plan = plan_actions(cell(spec()), Seen(servers, gone=gone), 0)
    assert only(plan.models[M]) == ("", S.NONE, reason)


# Updates that stop, go on and go back


def reasons(plan) -> list[str]:
    return [replica.reason for replica in plan.models[M].replicas]


def test_an_update_that_fails_says_where_and_why_and_what_stays_and_how_to_go_back():
    failure = Failure(NEW, 1, "host 3: tensor wq missing", 50.0)
    old = [holds(S.LOADED, OLD)]
    there = seen({A: [holds(S.FAILED)], B: old, C: old}, failures={(A, M): failure})
    plan = plan_actions(cell(spec(replicas=3)), there, 10)
    assert plan.actions == ()
    stopped = (
        "still serves the previous version: the update stopped because the new version "
        f"failed to load on {A} (host 3: tensor wq missing); 2 replicas stay on the old version "
        f"until a retry works, and `sax rollback {M}` goes back to it"
    )
    assert reasons(plan) == [
        stopped,
        stopped,
        "load failed: host 3: tensor wq missing; retry 1 at 00:00:50 UTC",
    ]


def test_an_update_that_failed_goes_on_once_the_retry_works():
    old = [holds(S.LOADED, OLD)]
    healed = seen({A: [holds(S.LOADED)], B: old, C: old})
    plan = plan_actions(cell(spec(replicas=3)), healed, 10)
    assert plan.actions == (UnloadAction(B, M, "it was updated"),)
    assert reasons(plan)[2] == "still serves the previous version until its turn in the update"


def test_a_failure_on_a_server_that_was_given_up_stops_nothing():
    elsewhere = Failure(NEW, 1, "bad disk", 1.0)
    there = seen(
        {A: [holds(S.LOADED)], B: [holds(S.LOADED, OLD)], C: []}, failures={(C, M): elsewhere}
    )
    plan = plan_actions(cell(spec(replicas=2)), there, 10)
    assert plan.actions == (UnloadAction(B, M, "it was updated"),)


def test_going_back_reloads_only_what_has_the_newer_version():
    wanted = cell(spec(replicas=3, version=OLD))
    there = seen({A: [holds(S.LOADED, NEW)], B: [holds(S.LOADED, OLD)], C: [holds(S.LOADED, OLD)]})
    plan = plan_actions(wanted, there, 0)
    assert plan.actions == (UnloadAction(A, M, "it was updated"),)
    assert plan.models[M].current == 2


def test_going_back_while_the_newer_version_loads_takes_that_load_back():
    wanted = cell(spec(replicas=2, version=OLD))
    loading = LoadAction(A, spec(replicas=2, version=NEW))
    there = seen({A: [], B: [holds(S.LOADED, OLD)]}, pending={(A, M): (loading,)})
    plan = plan_actions(wanted, there, 0)
    assert plan.actions == (UnloadAction(A, M, "it was updated while loading"),)


# Access control lists

ACLS = {"lm.generate": "ana"}


def test_new_access_control_lists_are_sent_to_loaded_replicas_and_nothing_is_reloaded():
    wanted = replace(spec(replicas=2), acls=ACLS)
    there = seen({A: [holds(S.LOADED)], B: [holds(S.LOADED, acls=ACLS)]})
    plan = plan_actions(cell(wanted), there, 0)
    assert plan.actions == (UpdateAcls(A, wanted),)
    assert plan.models[M].ready == {A, B}
    assert plan.models[M].current == 2


def test_access_control_lists_that_were_taken_back_are_sent_too():
    there = seen({A: [holds(S.LOADED, acls=ACLS)]})
    assert plan_actions(cell(spec()), there, 0).actions == (UpdateAcls(A, spec()),)


def test_an_empty_list_is_the_same_as_none():
    there = seen({A: [holds(S.LOADED)]})
    wanted = replace(spec(), acls={"lm.generate": ""})
    assert plan_actions(cell(wanted), there, 0).actions == ()


def test_access_control_lists_go_wherever_the_model_is_loaded_in_whatever_version():
    wanted = replace(spec(replicas=3), acls=ACLS)
    there = seen({A: [holds(S.LOADING)], B: [holds(S.LOADED, OLD)], C: [holds(S.LOADED)]})
    actions = plan_actions(cell(wanted), there, 0).actions
    assert actions == (UpdateAcls(B, wanted), UpdateAcls(C, wanted))


def test_access_control_lists_do_not_wait_for_another_model_that_is_loading_there():
    wanted = replace(spec(), acls=ACLS)
    other = LoadAction(A, spec("/sax/test/n"))
    there = seen({A: [holds(S.LOADED)]}, pending={(A, "/sax/test/n"): (other,)})
    plan = plan_actions(cell(wanted, other.spec), there, 0)
    assert plan.actions == (UpdateAcls(A, wanted),)


def test_access_control_lists_under_way_hold_up_no_load():
    wanted, other = replace(spec(), acls=ACLS), spec("/sax/test/n")
    there = seen({A: [holds(S.LOADED)]}, pending={(A, M): (UpdateAcls(A, wanted),)})
    assert plan_actions(cell(wanted, other), there, 0).actions == (LoadAction(A, other),)


def test_access_control_lists_that_are_refused_wait_and_say_so_while_the_replica_is_ready():
    wanted = replace(spec(), acls=ACLS)
    push = AclPush(ACLS, 1, "no such method", 60.0)
    there = seen({A: [holds(S.LOADED)]}, pushes={(A, M): push})
    plan = plan_actions(cell(wanted), there, 10)
    assert plan.actions == ()
    assert plan.models[M].ready == {A}
    assert only(plan.models[M]) == (
        A,
        S.LOADED,
        "ready, but with the previous access control lists: no such method; try 2 at 00:01:00 UTC",
    )
    assert plan_actions(cell(wanted), there, 60).actions == (UpdateAcls(A, wanted),)


def test_other_access_control_lists_do_not_wait_for_the_ones_that_were_refused():
    push = AclPush(ACLS, 1, "no such method", 60.0)
    there = seen({A: [holds(S.LOADED)]}, pushes={(A, M): push})
    wanted = replace(spec(), acls={"lm.score": "ben"})
    assert plan_actions(cell(wanted), there, 10).actions == (UpdateAcls(A, wanted),)


def test_a_server_that_reports_no_lists_and_no_versions_has_what_it_took():
    push = AclPush(ACLS, 1, "", 1.0)
    there = seen({A: [holds(S.LOADED, "")]}, pushes={(A, M): push})
    plan = plan_actions(cell(replace(spec(), acls=ACLS)), there, 10)
    assert plan.actions == ()
    assert only(plan.models[M]) == (A, S.LOADED, "")


# A new admin server, and servers that have not answered it


def silent(seen_: Seen, address: str, *models: str) -> Seen:
    """The same, and a server known from before that has not answered."""
    info = ServerInfo(address=address, model_paths=("x",))
    unheard = SeenServer(JoinedServer(info, 0.0), False, "refused", frozenset(models))
    return replace(seen_, servers={**seen_.servers, address: unheard})


def test_what_may_be_on_a_server_that_has_not_answered_is_loaded_nowhere_else():
    plan = plan_actions(cell(spec()), silent(seen({A: []}), C, M), 0)
    assert plan.actions == ()
    assert only(plan.models[M]) == (
        "",
        S.NONE,
        f"waiting for {C}, which may still hold it but has not answered yet (refused)",
    )


def test_what_is_new_is_loaded_beside_a_server_that_has_not_answered():
    new = spec("/sax/test/new")
    plan = plan_actions(cell(spec(), new), silent(seen({A: []}), C, M), 0)
    assert plan.actions == (LoadAction(A, new),)


def test_only_as_many_replicas_are_held_back_as_servers_have_not_answered():
    plan = plan_actions(cell(spec(replicas=3)), silent(seen({A: [], B: []}), C, M), 0)
    assert plan.actions == (LoadAction(A, spec(replicas=3)), LoadAction(B, spec(replicas=3)))


def test_a_silent_server_that_could_not_have_the_model_holds_nothing_back():
    wanted = spec(path="y")
    there = seen({A: []})
    able = replace(there.servers[A].joined, info=ServerInfo(address=A, model_paths=("y",)))
    there = replace(there, servers={A: SeenServer(able)})
    assert plan_actions(cell(wanted), silent(there, C, M), 0).actions == (LoadAction(A, wanted),)


def test_a_ready_replica_is_not_rolled_while_others_may_be_on_servers_that_are_silent():
    wanted = spec(replicas=2)
    there = silent(seen({A: [holds(S.LOADED, OLD)]}), C, M)
    assert plan_actions(cell(wanted), there, 0).actions == ()


# Memory


def roomy(address: str, gib: int, *held: ServableInfo) -> SeenServer:
    info = ServerInfo(address=address, model_paths=("x",), memory_total=gib * 2**30)
    return SeenServer(JoinedServer(info, 0.0, held))


def test_a_load_waits_for_the_memory_of_a_model_that_is_on_its_way_out():
    leaving = holds(S.UNLOADING, OLD, "/sax/test/gone", memory=6 * 2**30)
    wanted = replace(spec(), placement=Placement(memory=4 * 2**30))
    full = Seen({A: roomy(A, 8, leaving)})
    plan = plan_actions(cell(wanted), full, 0)
    assert plan.actions == ()
    assert (
        only(plan.models[M])[2]
        == f"waiting for memory on {A}: /sax/test/gone must be unloaded first"
    )
    assert plan_actions(cell(wanted), Seen({A: roomy(A, 8)}), 0).actions == (LoadAction(A, wanted),)


def test_a_reason_that_lists_silent_servers_stays_short():
    many = {
        f"h{n:04}:1": SeenServer(JoinedServer(ServerInfo(address=f"h{n:04}:1"), 0.0), False)
        for n in range(1000)
    }
    (reason,) = reasons(plan_actions(cell(spec()), Seen(many), 0))
    assert reason.startswith("h0000:1 has joined but has not answered yet; ")
    assert reason.endswith("and so have 996 other servers")


# A whole cell


@dataclass
class FakeServer:
    """Holds what it was told to; `work` counts the ticks until each action is done."""

    incarnation: str
    models: dict[str, ServableInfo] = field(default_factory=dict)
    work: list[tuple[int, Action]] = field(default_factory=list)


@dataclass
class Play:
    """A cell in which every tick is a second."""

    names: list[str]
    chance: random.Random
    now: float = 0.0
    wanted: CellState = field(default_factory=cell)
    fleet: dict[str, FakeServer] = field(default_factory=dict)
    failing: int = 0  # percent of loads that fail

    def __post_init__(self) -> None:
        self.servers = Servers(silence_s=3, jitter=random.Random(0))
        self.plan: CellActions | None = None
        for name in self.names:
            self.start(name)

    def start(self, name: str) -> None:
        """Start the server, or start it anew: it is empty, and it joins."""
        self.fleet[name] = FakeServer(f"{name} at {self.now}")
        info = ServerInfo(
            address=name, model_paths=("x",), incarnation=self.fleet[name].incarnation
        )
        self.servers.join(info, self.now)

    def lead(self) -> None:
        """Another admin server takes over; what servers are doing for the old one goes on."""
        infos = self.servers.infos()
        self.servers = Servers(silence_s=3, jitter=random.Random(0))
        self.servers.restore(infos, self.wanted.models, self.now)

    def tick(self) -> None:
        self.now += 1
        for name, fake in self.fleet.items():
            self._advance(fake)
            if name not in self.servers:  # as a heartbeat would
                info = ServerInfo(address=name, model_paths=("x",), incarnation=fake.incarnation)
                self.servers.join(info, self.now)
            status = ServerStatus(tuple(fake.models.values()), fake.incarnation)
            self.servers.saw(name, status, self.now, self.now)
        self.servers.prune(self.now)
        self.servers.forget_failures(self.wanted)
        view = self.servers.view()
        plan = plan_actions(self.wanted, view, self.now, before=self.plan)
        self._check_shortcuts(plan, view)
        self.plan = plan
        self._check(plan.actions, view)
        for action in plan.actions:
            self.servers.begin(action)
            fake = self.fleet.get(action.address)
            if fake is not None:
                fake.work.append((self.chance.randint(1, 3), action))
                self._show_start(fake, action)

    def _show_start(self, fake: FakeServer, action: Action) -> None:
        if isinstance(action, LoadAction):
            fake.models[action.model_id] = holds(S.LOADING, action.spec.version, action.model_id)
        elif isinstance(action, UnloadAction) and action.model_id in fake.models:
            old = fake.models[action.model_id]
            fake.models[action.model_id] = replace(old, status=S.UNLOADING)
            # The load under way ends here, with an error.
            for left, other in list(fake.work):
                if isinstance(other, LoadAction) and other.model_id == action.model_id:
                    fake.work.remove((left, other))
                    self.servers.finish(other, "a later call changed it", self.now)

    def _advance(self, fake: FakeServer) -> None:
        fake.work = [(left - 1, action) for left, action in fake.work]
        for left, action in list(fake.work):
            if left <= 0:
                fake.work.remove((left, action))
                self._end(fake, action)

    def _end(self, fake: FakeServer, action: Action) -> None:
        error = None
        if isinstance(action, UnloadAction):
            fake.models.pop(action.model_id, None)
        elif isinstance(action, UpdateAcls):
            error = "it failed" if self.chance.randint(1, 100) <= self.failing else None
            held = fake.models.get(action.model_id)
            if error is None and held is not None:
                fake.models[action.model_id] = replace(held, acls=action.spec.acls)
        elif self.chance.randint(1, 100) <= self.failing:
            error = "it failed"
            fake.models[action.model_id] = holds(
                S.FAILED, action.spec.version, action.model_id, reason=error
            )
        else:
            fake.models[action.model_id] = holds(
                S.LOADED, action.spec.version, action.model_id, acls=action.spec.acls
            )
        # Half a second before the next status is asked for.
        self.servers.finish(action, error, self.now - 0.5)

    def _check_shortcuts(self, plan: CellActions, view: Seen) -> None:
        """What was kept from earlier rounds makes no difference but to the cost."""
        scratch = plan_actions(self.wanted, replace(view, indexed=None), self.now)
        assert (plan.actions, plan.models) == (scratch.actions, scratch.models)
        assert view.models == replace(view, indexed=None).models

    def _check(self, actions: tuple[Action, ...], view: Seen) -> None:
        """No plan takes the last ready replica of a model while another server could help."""
        leaving = {(a.address, a.model_id) for a in actions if isinstance(a, UnloadAction)}
        for model_id, one in self.wanted.models.items():
            ready = {
                name
                for name, server in view.servers.items()
                for held in server.joined.servables
                if held.model_id == model_id and held.status is S.LOADED
                if not any(
                    isinstance(a, UnloadAction) for a in view.pending.get((name, model_id), ())
                )
            }
            left = {name for name in ready if (name, model_id) not in leaving}
            if one.replicas and ready and len(view.servers) > 1:
                assert left, f"{model_id} was taken from {ready} and is ready nowhere"
        loads = [a.address for a in actions if isinstance(a, LoadAction)]
        assert len(loads) == len(set(loads))

    def settled(self) -> bool:
        """Is everything as it was published, and nothing else there?"""
        for model_id, one in self.wanted.models.items():
            there = [
                fake.models[model_id] for fake in self.fleet.values() if model_id in fake.models
            ]
            versions = {each.version for each in variants(one)}
            good = [
                x
                for x in there
                if (x.status, x.acls) == (S.LOADED, one.acls) and x.version in versions
            ]
            wanted = replicas_with_canary(one.replicas, one.canary)
            if len(there) != len(good) or len(good) != min(wanted, len(self.fleet)):
                return False
            # With a replica missing none is reloaded for the canary, or back.
            if one.canary is not None and len(good) == wanted:
                canaries = sum(x.version == one.canary.version for x in good)
                if canaries != canary_replicas(wanted, one.canary.percent):
                    return False
        return all(m in self.wanted.models for fake in self.fleet.values() for m in fake.models)


events = st.tuples(
    st.sampled_from(
        [
            *("publish", "update", "update", "scale", "acls", "unpublish", "restart", "kill"),
            *("lead", "canary", "canary", "promote", "abort"),
        ]
    ),
    st.integers(0, 2),
    st.integers(0, 3),
    st.integers(0, 6),
)


@pytest.mark.extended
@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(0, 40),
    st.randoms(use_true_random=False),
    st.lists(events, max_size=12),
)
def test_any_cell_comes_to_rest_as_it_was_published(servers, failing, chance, history):
    play = Play([f"h{n}:1" for n in range(servers)], chance)
    for which in range(2):
        happen(play, "publish", which, 1 + which, f"{which + 100:032x}")
    for _ in range(20):
        play.tick()
    assert play.settled()
    play.failing = failing
    for number, (kind, which, replicas, ticks) in enumerate(history):
        happen(play, kind, which, replicas, f"{number:032x}")
        for _ in range(ticks):
            play.tick()
    play.failing = 0
    for _ in range(400):
        play.tick()
        if play.settled():
            break
    assert play.settled()
    for _ in range(5):  # and it stays at rest
        play.tick()
        assert play.settled()


def tried(one: ModelSpec, kind: str, percent: float, version: str) -> ModelSpec:
    """The spec with a canary, or a running one's new share, or after it was promoted or aborted."""
    if one.canary is None:
        started = Canary(version=version, checkpoint="new", percent=percent)
        return replace(one, canary=started) if kind == "canary" else one
    if kind == "canary":
        return replace(one, canary=replace(one.canary, percent=percent))
    return (
        canary_spec(one, one.canary)
        if kind == "promote"
        else replace(one, canary=None, aborted=one.canary.version)
    )


def happen(play: Play, kind: str, which: int, replicas: int, version: str) -> None:
    model_id, models = f"/sax/test/m{which}", dict(play.wanted.models)
    if kind == "publish":
        models.setdefault(model_id, spec(model_id, replicas=replicas, version=version))
    elif kind == "unpublish":
        models.pop(model_id, None)
    elif model_id in models and kind in ("canary", "promote", "abort"):
        models[model_id] = tried(models[model_id], kind, 30.0 * replicas + 1, version)
    elif model_id in models and kind in ("update", "scale"):
        change = {"version": version} if kind == "update" else {"replicas": replicas}
        models[model_id] = replace(models[model_id], **change)
    elif kind == "acls" and model_id in models:
        models[model_id] = replace(models[model_id], acls={"lm.generate": version})
    elif kind == "lead":
        play.lead()
    elif kind == "restart":
        play.start(sorted(play.fleet)[which % len(play.fleet)])
    elif kind == "kill" and len(play.fleet) > 1:
        del play.fleet[sorted(play.fleet)[which % len(play.fleet)]]
    play.wanted = CellState("/sax/test", models)
