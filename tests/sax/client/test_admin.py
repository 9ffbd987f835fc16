"""Whom a client asks next, and how it finds the leader among several admin servers."""

import asyncio

import pytest

from sax.client.admin import Admin, AdminChoice
from sax.errors import AdminUnavailable, DeadlineExceeded, NotLeading
from sax.proto import admin_pb2
from tests.sax.fake_admin import FakeAdmin

MODEL = admin_pb2.Model(
    model_id="/sax/test/m", model_path="x", checkpoint_path="c", requested_num_replicas=1
)
PUBLISH = admin_pb2.PublishRequest(model=MODEL)


async def two() -> str:
    return "a:1,b:1"


async def test_each_is_asked_in_turn_while_none_answers():
    choice = AdminChoice(two)
    asked = []
    for _ in range(3):
        asked.append(await choice.ask())
        choice.lost()
    assert asked == ["a:1", "b:1", "a:1"]


async def test_the_named_leader_is_asked_until_it_is_lost():
    choice = AdminChoice(two)
    choice.refused(NotLeading("follows", param="c:1"))
    assert await choice.ask() == "c:1"
    choice.lost()
    assert await choice.ask() == "a:1"


async def test_two_that_name_each_other_do_not_hold_the_client_between_them():
    choice = AdminChoice(two)
    choice.refused(NotLeading("follows", param="b:1"))
    choice.refused(NotLeading("has just stepped down", param=""))
    assert await choice.ask() == "a:1"
    choice.refused(NotLeading("follows nobody", param=""))
    assert await choice.ask() == "b:1"


async def test_a_change_goes_to_the_leader_that_a_follower_names():
    follower, leader = FakeAdmin(), FakeAdmin()
    await leader.start()
    follower.fail = [NotLeading("ask the one that leads", param=leader.address)]
    admin = Admin(await follower.start())
    await admin.change("Publish", PUBLISH, admin_pb2.PublishResponse)
    assert set(leader.models) == {"/sax/test/m"}
    assert not follower.models
    await admin.close()
    await asyncio.gather(follower.stop(), leader.stop())


@pytest.mark.extended
async def test_a_change_skips_an_admin_that_is_away():
    away, leader = FakeAdmin(), FakeAdmin()
    gone = await away.start()
    await away.stop()
    admin = Admin(f"{gone},{await leader.start()}")
    await admin.change("Publish", PUBLISH, admin_pb2.PublishResponse)
    assert set(leader.models) == {"/sax/test/m"}
    await admin.close()
    await leader.stop()


@pytest.mark.extended
async def test_a_change_waits_for_a_leader_while_there_is_none():
    admins = FakeAdmin()
    admins.fail = [NotLeading("nobody leads", param="") for _ in range(3)]
    admin = Admin(await admins.start())
    await admin.change("Publish", PUBLISH, admin_pb2.PublishResponse)
    assert set(admins.models) == {"/sax/test/m"}
    await admin.close()
    await admins.stop()


async def test_a_change_whose_answer_was_lost_is_not_sent_again():
    admins = FakeAdmin()
    admins.fail = [AdminUnavailable("the store did not answer")]
    admin = Admin(await admins.start())
    with pytest.raises(AdminUnavailable):
        await admin.change("Publish", PUBLISH, admin_pb2.PublishResponse)
    assert not admins.models
    await admin.close()
    await admins.stop()


async def test_an_admin_that_takes_the_call_and_hangs_is_not_asked_again():
    """A paused process, or a machine that vanished: the connection stands for long."""
    hanging, leader = FakeAdmin(), FakeAdmin()
    await asyncio.gather(hanging.start(), leader.start())
    hanging.fail = [DeadlineExceeded("it was paused") for _ in range(2)]
    admin = Admin(f"{hanging.address},{leader.address}")
    with pytest.raises(DeadlineExceeded):
        await admin.change("Publish", PUBLISH, admin_pb2.PublishResponse)
    await admin.change("Publish", PUBLISH, admin_pb2.PublishResponse)
    assert set(leader.models) == {"/sax/test/m"}
    await admin.close()
    await asyncio.gather(hanging.stop(), leader.stop())
