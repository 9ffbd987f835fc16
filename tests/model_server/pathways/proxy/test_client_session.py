from __future__ import annotations

import asyncio

import pytest

from model_server.pathways.proxy import client_session
from model_server.pathways.proxy.client_session import HostBuffers
from model_server.pathways.scheduling.handles import Fault
from sax.errors import NotFound, QueueFull


@pytest.fixture
def buffers() -> HostBuffers:
    return HostBuffers(100)


def test_a_request_takes_what_was_stored(buffers: HostBuffers) -> None:
    buffers.store(1, b"abc")
    assert buffers.take([1, 1]) == {1: b"abc"}
    assert (len(buffers), buffers.bytes) == (0, 0)
    with pytest.raises(NotFound, match="used or deleted"):
        buffers.take([1])


def test_stores_are_bounded_but_one_large_buffer_passes(buffers: HostBuffers) -> None:
    buffers.store(1, bytes(1000))
    with pytest.raises(QueueFull, match="host_buffer_bytes"):
        buffers.store(2, b"x")
    buffers.delete(1)
    buffers.store(2, bytes(60))
    with pytest.raises(QueueFull):
        buffers.store(3, bytes(60))


def test_what_devices_send_back_is_never_refused(buffers: HostBuffers) -> None:
    buffers.store(1, bytes(100))
    buffers.fill(2, bytes(100))
    assert buffers.bytes == 200


async def test_who_looks_for_an_expected_buffer_waits(buffers: HostBuffers) -> None:
    buffers.expect(1)
    looking = asyncio.create_task(buffers.look_up(1))
    await asyncio.sleep(0)
    assert not looking.done()
    buffers.fill(1, b"late")
    assert await looking == b"late"


async def test_who_looks_for_a_buffer_that_does_not_come_is_told_why(buffers: HostBuffers) -> None:
    buffers.expect(1)
    looking = asyncio.create_task(buffers.look_up(1))
    await asyncio.sleep(0)
    buffers.fail(1, Fault(15, "lost"))
    assert await looking == Fault(15, "lost")
    assert await buffers.look_up(1) == Fault(15, "lost")
    with pytest.raises(NotFound):
        await buffers.look_up(2)


async def test_reasons_are_not_kept_for_ever(buffers: HostBuffers) -> None:
    for handle in range(client_session._MOST_FAULTS + 1):
        buffers.fail(handle, Fault(15, "lost"))
    with pytest.raises(NotFound):
        await buffers.look_up(0)
    assert await buffers.look_up(1) == Fault(15, "lost")


async def test_a_buffer_that_never_comes_is_refused_in_time(
    buffers: HostBuffers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_session, "WAIT_S", 0.01)
    with pytest.raises(NotFound, match="did not arrive"):
        await buffers.wait([5])


async def test_closing_frees_and_wakes(buffers: HostBuffers) -> None:
    buffers.store(1, b"abc")
    buffers.expect(2)
    looking = asyncio.create_task(buffers.look_up(2))
    await asyncio.sleep(0)
    buffers.close()
    with pytest.raises(asyncio.CancelledError):
        await looking
    assert (len(buffers), buffers.bytes) == (0, 0)


async def test_buffers_that_come_out_of_order_are_all_waited_for(buffers: HostBuffers) -> None:
    waiting = asyncio.create_task(buffers.wait([1, 2, 3]))
    await asyncio.sleep(0)
    for handle in (3, 2, 1):
        buffers.store(handle, b"x")
    async with asyncio.timeout(60):
        await waiting
