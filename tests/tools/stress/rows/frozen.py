"""Model servers that stop answering without a word, and one that says that it leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable

from sax.client import AsyncClient
from sax.errors import SaxError
from tests.end_to_end.cell import MODEL_SERVER, SMOLLM2, Cell
from tests.tools.stress.row import row
from tests.tools.stress.users import Users

LOST_S = 5.0  # promised in docs/explanation/reliability.md
LISTED_S = 2.0
NEW_AT_S = (0.0, 1.0, 3.0, 6.0)  # when new requests come, counted from the freeze
HOSTS = (f"{MODEL_SERVER} host 0", f"{MODEL_SERVER} host 1")
FIRST, SECOND = f"{MODEL_SERVER} 0", f"{MODEL_SERVER} 1"


@row("the only replica frozen in mid-stream (SIGSTOP)", neighbour=False)
def frozen_alone(cell: Cell) -> str:
    return asyncio.run(_frozen_alone(cell))


async def _frozen_alone(cell: Cell) -> str:
    async with Users(cell) as users, AsyncClient(cell.plan.admin_address) as client:
        streams = [users.begin(1500) for _ in range(4)]
        await users.warm(streams)
        await client.score(SMOLLM2, "one", [" two"])
        at_s = time.monotonic()
        cell.pause(MODEL_SERVER)
        try:
            scoring = asyncio.create_task(_failure(client.score(SMOLLM2, "one", [" two"])))
            new = [asyncio.create_task(users.short(after_s)) for after_s in NEW_AT_S]
            lost = [await stream for stream in streams]
            refused = [await each for each in new]
            score_error, scored_s = await scoring
        finally:
            cell.resume(MODEL_SERVER)
    assert all("replica_lost" in one.error for one in lost), lost
    assert all(one.error for one in refused), refused
    assert "ReplicaLost" in score_error, score_error
    ended_s = max(one.ended_s for one in lost) - at_s
    refused_s = max(one.took_s for one in refused)
    _serves_again(cell, 1)
    assert ended_s <= LOST_S, f"a stream ended after {ended_s:.1f} s"
    assert refused_s <= LOST_S, f"a new request waited {refused_s:.1f} s: {refused}"
    assert scored_s - at_s <= LOST_S, f"a unary call ended after {scored_s - at_s:.1f} s"
    return f"4 streams lost after {ended_s:.1f} s, new requests refused after {refused_s:.1f} s"


@row("one of two replicas frozen in mid-stream (SIGSTOP)", servers=2, neighbour=False)
def frozen_one_of_two(cell: Cell) -> str:
    return asyncio.run(_frozen_one_of_two(cell))


async def _frozen_one_of_two(cell: Cell) -> str:
    async with Users(cell) as users:
        streams = [users.begin(400) for _ in range(6)]
        await users.warm(streams)
        cell.pause(FIRST)
        try:
            new = [asyncio.create_task(users.short(after_s)) for after_s in NEW_AT_S]
            answered = [await each for each in new]
        finally:
            cell.resume(FIRST)
        ended = [await stream for stream in streams]
    assert not any(one.error for one in (*ended, *answered)), (ended, answered)
    assert [one.tokens for one in ended] == [400] * 6, ended
    longest_s = max(one.took_s for one in answered)
    _serves_again(cell, 2)
    assert longest_s <= LOST_S, f"a new request took {longest_s:.1f} s"
    return f"6 streams whole; new requests answered after {longest_s:.1f} s at most"


@row(
    "the primary of a replica of two hosts frozen",
    hosts=2,
    # Clients must not need the other host for it: that one waits longer than they may.
    model_server_flags=("--host_timeout_seconds=30",),
    neighbour=False,
    ends=HOSTS,
)
def frozen_primary(cell: Cell) -> str:
    return asyncio.run(_frozen_primary(cell))


async def _frozen_primary(cell: Cell) -> str:
    async with Users(cell) as users:
        streams = [users.begin(1500) for _ in range(4)]
        await users.warm(streams)
        at_s = time.monotonic()
        cell.pause(HOSTS[0])
        try:
            lost = [await stream for stream in streams]
        finally:
            cell.restart(HOSTS)
    assert all("replica_lost" in one.error for one in lost), lost
    ended_s = max(one.ended_s for one in lost) - at_s
    _serves_again(cell, 1)
    assert ended_s <= LOST_S, f"a stream ended after {ended_s:.1f} s"
    return f"4 streams lost after {ended_s:.1f} s"


@row("SIGTERM to one of two replicas in mid-stream", servers=2, neighbour=False, ends=(SECOND,))
def terminated(cell: Cell) -> str:
    return asyncio.run(_terminated(cell))


async def _terminated(cell: Cell) -> str:
    async with Users(cell) as users, AsyncClient(cell.plan.admin_address) as client:
        streams = [users.begin(200) for _ in range(6)]
        await users.warm(streams)
        cell.terminate(SECOND)
        try:
            listed_s = await _seconds_until_ready(client, 1)
            new = [await users.short() for _ in range(5)]
            ended = [await stream for stream in streams]
            status = await asyncio.to_thread(cell.ended, SECOND)
        finally:
            cell.start(SECOND)
    assert status == 0, status
    assert [one.tokens for one in ended] == [200] * 6, ended
    assert not any(one.error for one in new), new
    _serves_again(cell, 2)
    assert listed_s <= LISTED_S, f"it was listed as ready for {listed_s:.1f} s"
    return f"listed as ready for {listed_s:.2f} s; its streams ended whole"


async def _seconds_until_ready(client: AsyncClient, replicas: int) -> float:
    began_s = time.monotonic()
    while (await client.list(SMOLLM2)).ready_replicas != replicas:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.02)
    return time.monotonic() - began_s


async def _failure(call: Awaitable[object]) -> tuple[str, float]:
    """Return how a call failed, and when."""
    try:
        await call
    except SaxError as error:
        return f"{type(error).__name__}: {error}", time.monotonic()
    return "", time.monotonic()


def _serves_again(cell: Cell, replicas: int) -> None:
    cell.eventually(lambda: cell.listed()["ready_replicas"] == replicas, "all replicas are ready")
    cell.eventually(lambda: cell.complete("one").is_success, "a completion succeeds")
