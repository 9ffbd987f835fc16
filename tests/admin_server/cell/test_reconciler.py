"""The loop on a virtual clock: what is published gets loaded, whatever happens to servers."""

import asyncio
import random
from dataclasses import replace

import pytest

from admin_server.cell.cell import Cell
from admin_server.cell.modelets import GrpcModelets
from sax.errors import InvalidRequest
from sax.types import ModelSpec, Placement, ServableStatus, ServerInfo
from tests.admin_server.conftest import FAST, eventually
from tests.admin_server.virtual_admin import WiredModelet
from tests.virtual_loop import now

pytestmark = pytest.mark.virtual_time

M = "/sax/test/m"


def spec(**changes) -> ModelSpec:
    settings = {"model_path": "llama", "checkpoint": "/one", "replicas": 1, **changes}
    return ModelSpec(model_id=M, **settings)


def replica(admin):
    (only,) = admin.cell.find(M).replicas
    return only


async def test_a_model_is_loaded_on_the_server_that_joins_after_its_publish(admin, start_modelet):
    await admin.cell.publish(spec())
    await eventually(lambda: "no model server has joined" in replica(admin).reason)
    modelet = await start_modelet()
    await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
    assert modelet.calls == [("load", M)]


async def test_a_load_that_ends_is_known_at_once_however_seldom_servers_are_polled(config, wires):
    seldom = replace(FAST, poll_s=3600.0, silence_s=36000.0)
    async with wires.leading(config, seldom) as admin:
        modelet = await WiredModelet(wires).start()
        await modelet.join(admin.port)
        await admin.cell.publish(spec())
        await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
        await modelet.stop()


async def test_an_unpublished_model_is_unloaded(admin, start_modelet):
    modelet = await start_modelet()
    await admin.cell.publish(spec())
    await eventually(lambda: modelet.holds(M))
    await admin.cell.unpublish(M)
    await eventually(lambda: not modelet.models)


async def test_a_server_that_came_back_empty_is_given_its_models_again(admin, start_modelet):
    modelet = await start_modelet()
    await admin.cell.publish(spec())
    await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
    await modelet.stop()
    await modelet.start()
    await modelet.join(admin.port)
    await eventually(lambda: modelet.holds(M))
    await eventually(lambda: admin.cell.find(M).ready_replicas == 1)


async def test_a_restart_is_noticed_from_the_status_alone(admin, start_modelet):
    modelet = await start_modelet()
    await admin.cell.publish(spec())
    await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
    await modelet.stop()
    await modelet.start()
    await eventually(lambda: modelet.calls == [("load", M), ("load", M)])
    await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
    assert admin.cell.servers()[0].info.incarnation == modelet.incarnation


async def test_servers_of_machines_that_are_gone_serve_on_and_get_nothing_more(
    admin, start_modelet
):
    serving = await start_modelet(tags=("set:a",))
    await admin.cell.publish(spec())
    await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
    idle = await start_modelet(tags=("set:a",))
    admin.cell.reconciler.retire(frozenset({"set:a"}))
    await eventually(lambda: len(admin.cell.infos()) == 1)
    await idle.join(admin.port)
    assert [info.address for info in admin.cell.infos()] == [serving.address]
    await admin.cell.update(replace(spec(), replicas=2))
    await eventually(lambda: "1 joined server" in admin.cell.find(M).replicas[-1].reason)
    assert idle.address not in admin.cell.find(M).replicas[-1].reason
    admin.cell.reconciler.retire(frozenset())  # the object is there again
    await idle.join(admin.port)
    await eventually(lambda: admin.cell.find(M).ready_replicas == 2)


async def test_a_server_that_leaves_is_ready_no_more_and_its_models_go_elsewhere(
    admin, start_modelet
):
    first = await start_modelet()
    await admin.cell.publish(spec())
    await eventually(lambda: first.holds(M))
    second = await start_modelet()
    second.may_load.clear()
    await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
    admin.cell.leave(first.address, first.incarnation)
    await eventually(lambda: admin.cell.find(M).ready_replicas == 0)
    assert first.holds(M)  # its requests end there by themselves
    await eventually(lambda: second.calls == [("load", M)])
    second.may_load.set()
    await eventually(lambda: replica(admin).address == second.address)


async def test_a_late_heartbeat_of_a_server_that_left_does_not_bring_it_back(admin, start_modelet):
    modelet = await start_modelet()
    await admin.cell.publish(spec())
    await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
    admin.cell.leave(modelet.address, modelet.incarnation)
    await modelet.join(admin.port)
    await eventually(lambda: not admin.cell.servers())
    await asyncio.sleep(5)
    assert admin.cell.servers() == []
    await eventually(lambda: "began to shut down" in replica(admin).reason)
    await modelet.stop()
    await modelet.start()
    await modelet.join(admin.port)
    await eventually(lambda: admin.cell.find(M).ready_replicas == 1)


async def test_leaving_is_of_one_start_of_a_server(admin, start_modelet):
    modelet = await start_modelet()
    await admin.cell.publish(spec())
    await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
    admin.cell.leave(modelet.address, "the start before")
    admin.cell.leave("127.0.0.1:1", modelet.incarnation)
    await asyncio.sleep(5)
    assert len(admin.cell.servers()) == 1


async def test_a_server_whose_status_says_that_it_drains_is_ready_no_more(admin, start_modelet):
    modelet = await start_modelet()
    await admin.cell.publish(spec())
    await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
    modelet.draining = True
    await eventually(lambda: admin.cell.find(M).ready_replicas == 0)
    assert admin.cell.servers() == []


async def test_a_silent_server_is_dropped_and_its_models_go_elsewhere(admin, start_modelet):
    first = await start_modelet()
    await admin.cell.publish(spec())
    await eventually(lambda: first.holds(M))
    second = await start_modelet()
    await first.stop()
    await eventually(lambda: second.holds(M))
    await eventually(lambda: replica(admin).address == second.address)
    assert [server.info.address for server in admin.cell.servers()] == [second.address]
    await first.start()  # for the fixture, which stops it again


async def test_a_dropped_server_is_told_of_in_the_reason_and_not_named(admin, start_modelet):
    modelet = await start_modelet()
    await admin.cell.publish(spec())
    await eventually(lambda: modelet.holds(M))
    await modelet.stop()
    await eventually(lambda: "a server was dropped at" in replica(admin).reason)
    assert modelet.address not in replica(admin).reason
    await modelet.start()
    await modelet.join(admin.port)
    await eventually(lambda: admin.cell.find(M).ready_replicas == 1)


async def test_a_failed_load_is_told_and_tried_again_until_it_works(admin, start_modelet):
    modelet = await start_modelet()
    modelet.failing = "weights.bin is truncated"
    await admin.cell.publish(spec())
    await eventually(lambda: replica(admin).status is ServableStatus.FAILED)
    await eventually(
        lambda: "load failed: weights.bin is truncated; retry 1 at " in replica(admin).reason
    )
    modelet.failing = ""
    await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
    assert modelet.calls == [("load", M), ("unload", M), ("load", M)]


async def test_a_load_under_way_shows_its_progress_and_is_not_asked_for_twice(admin, start_modelet):
    modelet = await start_modelet()
    modelet.may_load.clear()
    await admin.cell.publish(spec())
    await eventually(lambda: replica(admin).reason == "loading: reading weights 1 of 2")
    await asyncio.sleep(0.3)  # several polls
    assert modelet.calls == [("load", M)]
    modelet.may_load.set()
    await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
    assert modelet.calls == [("load", M)]


async def test_an_update_of_the_checkpoint_reloads_and_one_of_the_replicas_does_not(
    admin, start_modelet
):
    modelet = await start_modelet()
    await admin.cell.publish(spec())
    await eventually(lambda: modelet.holds(M))
    await admin.cell.update(spec(replicas=2))
    await eventually(lambda: len(admin.cell.find(M).replicas) == 2)
    await admin.cell.update(spec(replicas=1))
    await asyncio.sleep(0.2)
    assert modelet.calls == [("load", M)]
    before = modelet.models[M].version
    await admin.cell.update(spec(checkpoint="/two"))
    await eventually(lambda: modelet.holds(M) and modelet.models[M].version != before)


async def test_during_an_update_with_two_servers_the_model_is_always_ready(admin, start_modelet):
    first, second = await start_modelet(), await start_modelet()
    await admin.cell.publish(spec())
    await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
    old = admin.cell.find(M).spec.version
    await admin.cell.update(spec(checkpoint="/two"))

    def updated() -> bool:
        assert first.holds(M) or second.holds(M)
        held = [modelet.models[M].version for modelet in (first, second) if modelet.holds(M)]
        return len(held) == 1 and old not in held

    await eventually(updated)


async def test_two_servers_share_two_models(admin, start_modelet):
    first, second = await start_modelet(), await start_modelet()
    await admin.cell.publish(spec())
    await admin.cell.publish(
        ModelSpec(model_id="/sax/test/n", model_path="llama", checkpoint="None", replicas=1)
    )
    await eventually(lambda: all(model.ready_replicas == 1 for model in admin.cell.models()))
    assert len(first.models) == len(second.models) == 1


async def test_what_places_a_model_reloads_nothing_and_is_not_told_to_the_server(
    admin, start_modelet
):
    modelet = await start_modelet()
    await admin.cell.publish(spec(overrides={"ram": "1000", "DTYPE": '"float32"'}))
    await eventually(lambda: modelet.holds(M))
    assert modelet.loaded_overrides == {"DTYPE": '"float32"'}
    await admin.cell.update(spec(overrides={"ram": "2000", "DTYPE": '"float32"'}))
    await admin.cell.update(
        spec(overrides={"DTYPE": '"float32"'}, placement=Placement(devices=1, memory=1000))
    )
    await asyncio.sleep(0.2)
    assert modelet.calls == [("load", M)]


async def test_a_wrong_constraint_is_refused_at_publish_by_name(admin):
    with pytest.raises(InvalidRequest, match="constraints") as failure:
        await admin.cell.publish(spec(overrides={"constraints": "7"}))
    assert failure.value.param == "overrides"


async def test_a_model_waits_for_a_server_with_its_tags_and_devices(admin, start_modelet):
    modelet = await start_modelet()
    await admin.cell.publish(spec(placement=Placement(devices=32)))
    await eventually(lambda: "needs 32 devices in one slice" in replica(admin).reason)
    # Without a revision, as Saxml's clients change a model, its placement would stay.
    revision = admin.cell.find(M).spec.revision
    await admin.cell.update(spec(placement=Placement(tags=("a100",)), revision=revision))
    await eventually(lambda: "no server has the tag a100" in replica(admin).reason)
    await admin.cell.update(spec(revision=admin.cell.find(M).spec.revision))
    await eventually(lambda: modelet.holds(M))


async def test_new_access_control_lists_reach_a_loaded_replica_without_a_reload(
    admin, start_modelet
):
    """The plan's own spec: whether an operator may set lists is not the reconciler's business."""
    modelet = await start_modelet()
    await admin.cell.publish(spec())
    await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
    modelet.refusing = "no such method"
    put_acls(admin, {"lm.generate": "ana"})
    await eventually(lambda: "no such method" in replica(admin).reason)
    assert admin.cell.find(M).ready_replicas == 1
    modelet.refusing = ""
    await eventually(lambda: modelet.models[M].acls == {"lm.generate": "ana"})
    await eventually(lambda: replica(admin).reason == "")
    assert {call for call, _ in modelet.calls} == {"load", "acls"}
    await admin.cell.unpublish(M)
    await eventually(lambda: ("unload", M) in modelet.calls)
    assert modelet.terms == {admin.role.term}  # none of it would be obeyed from a deposed leader


def put_acls(admin, acls) -> None:
    state = admin.cell.ledger.state
    changed = replace(state.models[M], acls=acls)
    admin.cell.ledger.state = replace(state, models={M: changed})
    admin.cell.reconciler.wake()


async def test_a_restored_server_is_asked_and_what_it_has_is_left_there(admin, start_modelet):
    first, second = await start_modelet(), await start_modelet()
    await admin.cell.publish(spec())
    await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
    holder = first if first.holds(M) else second
    later = Cell(
        admin.cell.ledger, GrpcModelets(), now, timing=FAST, jitter=random.Random(0)
    )  # as another admin server would be, over the same state
    later.reconciler.restore([first.info, second.info])
    loop = asyncio.create_task(later.reconciler.run())
    await eventually(lambda: later.find(M).ready_replicas == 1)
    assert later.find(M).replicas[0].address == holder.address
    assert first.calls + second.calls == [("load", M)]
    loop.cancel()
    await later.reconciler.close()


async def test_a_restored_cell_waits_for_servers_only_if_nobody_tells_it_who_there_are(
    admin, start_modelet
):
    modelet = await start_modelet()
    await admin.cell.publish(spec())
    await eventually(lambda: modelet.holds(M))
    patient = replace(FAST, settle_s=600.0)

    def restored(servers: list[ServerInfo] | None) -> Cell:
        luck = random.Random(0)
        return Cell(
            admin.cell.ledger, GrpcModelets(), now, timing=patient, jitter=luck, servers=servers
        )

    assert not restored(None).knows_servers
    later = restored([])  # all said goodbye to the leader before
    assert later.knows_servers
    later.reconciler.join(modelet.info)
    loop = asyncio.create_task(later.reconciler.run())
    await eventually(lambda: later.find(M).ready_replicas == 1)
    loop.cancel()
    await later.reconciler.close()
