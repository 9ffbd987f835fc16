"""One model followed by a task of its own."""

from __future__ import annotations

import asyncio

import pytest

from sax.client.replicas import Follower
from sax.errors import AdminUnavailable, Internal, ModelNotFound
from sax.proto import admin_pb2
from tests.sax.client.test_watch import Script, answer


async def test_it_waits_for_a_first_replica_and_no_longer_than_asked() -> None:
    script = Script(answer(1, []))
    follower = Follower(script, "m")
    assert await follower.usable(0.02) == frozenset()
    script.answers.put_nowait(answer(2, ["a"]))
    assert await follower.usable(20) == {"a"}
    await follower.close()


async def test_many_who_wait_are_all_woken() -> None:
    script = Script(answer(1, []), answer(2, ["a"]))
    follower = Follower(script, "m")
    waiting = [asyncio.create_task(follower.usable(20)) for _ in range(5)]
    assert await asyncio.gather(*waiting) == [{"a"}] * 5
    await follower.close()


@pytest.mark.parametrize("fault", [AdminUnavailable, ModelNotFound])
async def test_the_error_of_the_first_question_is_raised_to_everyone(fault: type) -> None:
    follower = Follower(Script(fault("x")), "m")
    first, second = await asyncio.gather(
        follower.usable(20), follower.usable(20), return_exceptions=True
    )
    assert type(first) is type(second) is fault
    assert first is not second
    await follower.close()


async def test_a_bug_ends_it_with_an_error_and_not_with_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        async def watch_loc(self, request: admin_pb2.WatchLocRequest) -> admin_pb2.WatchLocResponse:
            raise KeyError("bug")

    follower = Follower(Broken(), "m")
    with pytest.raises(Internal):
        await follower.usable(20)
    assert "bug" in caplog.text
    await follower.close()
