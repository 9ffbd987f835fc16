"""A large cell: all of it comes up right, and work grows with its size, not with its square.

Work is counted in steps of the interpreter, which no busy machine can change.
"""

import gc
import random
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from admin_server.api.server import CellListing
from admin_server.api.status_page import StatusView, describe
from admin_server.assignment.plan import CellActions, plan_actions
from admin_server.assignment.seen import Seen
from admin_server.assignment.servers import Servers
from admin_server.cell.cell import Cell
from admin_server.leadership import AdminRole
from admin_server.ledger.ledger import Ledger
from admin_server.ledger.state import CellState
from admin_server.storage.store_check import StoreHealth
from sax.names import CellId
from sax.storage.object_store import open_store
from sax.types import ModelSpec, ServableStatus
from tests.admin_server.fake_fleet import FakeFleet, model_specs, server_infos


class Rounds:
    """The planner and its bookkeeping with a fleet, a second for each round."""

    def __init__(self, servers: int, models: int) -> None:
        self.fleet = FakeFleet(server_infos(servers))
        self.servers = Servers(silence_s=1e9, jitter=random.Random(0))
        self.wanted = CellState("/sax/test", {spec.model_id: spec for spec in model_specs(models)})
        self.plan: CellActions | None = None
        self.now = 0.0
        for info in self.fleet.infos.values():
            self.servers.join(info, self.now)

    def round(self) -> CellActions:
        """What every server says, one plan, and all of it carried out."""
        plan = plan_actions(self.wanted, self.look(), self.now, before=self.plan)
        self.plan = plan
        for action in plan.actions:
            self.servers.begin(action)
            self.fleet.begin(action)
            self.fleet.end(action)
            self.servers.finish(action, None, self.now)
        return plan

    def look(self) -> Seen:
        """What every server says now."""
        self.now += 1
        for address in self.fleet.infos:
            self.servers.saw(address, self.fleet.status_now(address), self.now, self.now)
        return self.servers.view()

    def settle(self) -> int:
        """How many rounds it takes until nothing is left to do."""
        rounds = 1
        while self.round().actions:
            rounds += 1
        return rounds


@pytest.mark.extended
@pytest.mark.parametrize("servers", [200, pytest.param(1000, marks=pytest.mark.nightly)])
def test_many_servers_and_twice_as_many_models_come_up_with_no_byte_too_much(servers):
    cell = Rounds(servers, 2 * servers)
    rounds = cell.settle()
    report = cell.round()
    assert report.actions == ()
    for spec in cell.wanted.models.values():
        model = report.models[spec.model_id]
        assert model.current == spec.replicas == len(model.ready)
        assert all(replica.status is ServableStatus.LOADED for replica in model.replicas)
    assert cell.fleet.loads == sum(spec.replicas for spec in cell.wanted.models.values())
    busiest = max(len(models) for models in cell.fleet.models.values())
    assert rounds <= 2 * busiest + 2  # a server loads one model at a time, and nothing waits long


def steps(work: Callable[[], object]) -> int:
    """How many bytecodes it runs."""
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def at_rest(size: int) -> Callable[[], object]:
    cell = Rounds(size, 2 * size)
    cell.settle()
    return lambda: plan_actions(cell.wanted, cell.servers.view(), cell.now)


def all_to_place(size: int) -> Callable[[], object]:
    cell = Rounds(size, 2 * size)
    cell.look()
    return lambda: plan_actions(cell.wanted, cell.servers.view(), cell.now)


def no_room(size: int) -> Callable[[], object]:
    """Every model is too large for every server, and says so."""
    cell = Rounds(size, 2 * size)
    cell.wanted = replace(cell.wanted, models=huge_models(2 * size))
    cell.look()
    return lambda: plan_actions(cell.wanted, cell.servers.view(), cell.now)


def paths_unknown(size: int) -> Callable[[], object]:
    """Every model has a path of its own that nobody serves."""
    cell = Rounds(size, 2 * size)
    specs = cell.wanted.models.values()
    lost = {spec.model_id: replace(spec, model_path=f"x.{spec.model_id[-4:]}") for spec in specs}
    cell.wanted = replace(cell.wanted, models=lost)
    cell.look()
    return lambda: plan_actions(cell.wanted, cell.servers.view(), cell.now)


def reserved(cell: Rounds) -> None:
    """Every second server is for one model, and most models have such a server."""
    for number, info in enumerate(list(cell.fleet.infos.values())[::2]):
        cell.servers.join(replace(info, tags=(*info.tags, f"model:/sax/test/model-{number:04}")), 0)


def all_to_place_with_reservations(size: int) -> Callable[[], object]:
    cell = Rounds(size, 2 * size)
    reserved(cell)
    cell.look()
    return lambda: plan_actions(cell.wanted, cell.servers.view(), cell.now)


def no_room_beside_reservations(size: int) -> Callable[[], object]:
    cell = Rounds(size, 2 * size)
    reserved(cell)
    cell.wanted = replace(cell.wanted, models=huge_models(2 * size))
    cell.look()
    return lambda: plan_actions(cell.wanted, cell.servers.view(), cell.now)


def taken_over(size: int) -> Callable[[], object]:
    """Another admin server leads, and half of the servers have answered it."""
    cell = Rounds(size, 2 * size)
    cell.settle()
    cell.servers = Servers(silence_s=1e9, jitter=random.Random(0))
    cell.servers.restore(cell.fleet.infos.values(), cell.wanted.models, cell.now)
    for address in list(cell.fleet.infos)[::2]:
        cell.servers.saw(address, cell.fleet.status_now(address), cell.now, cell.now)
    return lambda: plan_actions(cell.wanted, cell.servers.view(), cell.now)


def all_failing(size: int) -> Callable[[], object]:
    """Every server failed a load, and every failure waits for its next try."""
    cell = Rounds(size, 2 * size)
    for action in plan_actions(cell.wanted, cell.look(), cell.now).actions:
        cell.servers.begin(action)
        cell.servers.finish(action, "no such checkpoint", cell.now)
    cell.look()
    return lambda: plan_actions(cell.wanted, cell.servers.view(), cell.now)


def looking(size: int) -> Callable[[], object]:
    """Every server answers GetStatus."""
    cell = Rounds(size, 2 * size)
    cell.settle()
    return cell.look


@pytest.mark.extended
@pytest.mark.parametrize(
    "scene",
    [
        *(at_rest, all_to_place, no_room, paths_unknown, taken_over, all_failing, looking),
        *(all_to_place_with_reservations, no_room_beside_reservations),
    ],
)
def test_twice_the_cell_is_twice_the_work(scene):
    small, large = steps(scene(60)), steps(scene(120))
    assert small > 1000
    assert large < 2.3 * small  # 4 if it grew with servers x models


def test_rounds_leave_no_cycles_for_the_collector():
    """A full collection stops the loop for longer than several rounds take."""
    cell = Rounds(20, 60)
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            cell.round()
        crowded = replace(cell.wanted, models={**cell.wanted.models, **huge_models(20)})
        plan_actions(crowded, cell.look(), cell.now, before=cell.plan)
        assert gc.collect() == 0
    finally:
        gc.enable()


def huge_models(count: int) -> dict[str, ModelSpec]:
    """Models too large for every server."""
    return {
        spec.model_id: replace(spec, placement=replace(spec.placement, memory=2**60))
        for spec in model_specs(count)
    }


@pytest.mark.extended
async def test_telling_operators_and_watchers_of_twice_the_cell_is_twice_the_work():
    assert await steps_of_telling(120) < 2.3 * await steps_of_telling(60)


async def steps_of_telling(size: int) -> int:
    """All watch sets are made, the status page is shown, the whole cell is listed."""
    rounds = Rounds(size, 2 * size)
    rounds.settle()
    cell = await cell_of(rounds)
    seen = rounds.look()
    plan = plan_actions(rounds.wanted, seen, rounds.now)
    count = steps(lambda: cell._on_plan(plan, seen))
    assert all(model.ready_replicas for model in cell.models())
    role = AdminRole(CellId("test"), StoreHealth(lambda: rounds.now))
    role.take(cell, 1, "10.0.0.1:1")
    count += steps(lambda: describe(role, rounds.now, StatusView()))
    return count + steps(lambda: CellListing(lambda: rounds.now).answer(cell, ""))


@pytest.mark.extended
def test_a_round_in_which_nothing_changed_thinks_of_no_replica():
    cell = Rounds(60, 120)
    cell.settle()
    plan = plan_actions(cell.wanted, cell.look(), cell.now)
    again = steps(lambda: plan_actions(cell.wanted, cell.look(), cell.now, before=plan))
    looking_alone = steps(cell.look)
    assert again - looking_alone < 100 * len(cell.wanted.models)


async def cell_of(rounds: Rounds) -> Cell:
    """A cell in which the models are published; its loop does not run."""
    store, name = open_store("memory://"), CellId.parse("/sax/test")
    ledger = await Ledger.open(store, name, snapshot_every=1000)
    ledger.state = rounds.wanted
    return Cell(ledger, rounds.fleet, lambda: rounds.now)
