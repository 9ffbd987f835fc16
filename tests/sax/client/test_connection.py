"""The multiplexed token stream against a server that counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sax.client.connection import ModelServerConnection
from sax.client.losses import SILENCE_S, Pulse
from sax.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    PromptTooLong,
    QueueFull,
    ReplicaLost,
)
from sax.types import GenerateRequest, SamplingParams, TokenChunk
from tests import virtual_loop
from tests.sax.fake_replica import FakeReplica


@pytest.fixture
async def connection(replica: FakeReplica) -> AsyncIterator[ModelServerConnection]:
    connection = ModelServerConnection(replica.address)
    yield connection
    await connection.close()
    assert connection.outstanding == 0


def ask(tokens: int, prompt: str = "go") -> GenerateRequest:
    return GenerateRequest(
        model_id="/sax/test/counter", prompt=prompt, sampling=SamplingParams(max_tokens=tokens)
    )


async def text(connection: ModelServerConnection, tokens: int) -> str:
    return " ".join([chunk.text async for chunk in connection.generate(ask(tokens))])


async def until(true: Callable[[], object]) -> None:
    while not true():  # noqa: ASYNC110 - what the server saw has no event
        await asyncio.sleep(0.005)


async def test_an_answer_arrives_chunk_by_chunk_with_all_its_fields(
    connection: ModelServerConnection,
) -> None:
    chunks = [chunk async for chunk in connection.generate(ask(3))]
    assert [chunk.text for chunk in chunks] == ["0", "1", "2"]
    assert [chunk.token_ids for chunk in chunks] == [(0,), (1,), (2,)]
    assert [chunk.finish_reason for chunk in chunks] == [None, None, "length"]
    assert (chunks[-1].prompt_tokens, chunks[-1].completion_tokens) == (5, 3)
    assert chunks[-1].score == -2.0


async def test_many_requests_share_one_stream_and_get_their_own_chunks(
    connection: ModelServerConnection, replica: FakeReplica
) -> None:
    answers = await asyncio.gather(*(text(connection, tokens) for tokens in range(1, 33)))
    assert answers == [" ".join(map(str, range(tokens))) for tokens in range(1, 33)]
    assert replica.streams == 1
    assert replica.cancelled == []


async def test_outstanding_counts_the_open_requests(
    connection: ModelServerConnection, replica: FakeReplica
) -> None:
    replica.hold.clear()
    streams = [connection.generate(ask(9)) for _ in range(3)]
    for stream in streams:
        await anext(stream)
    assert connection.load == (False, 3)
    await streams[0].aclose()
    assert connection.outstanding == 2
    replica.hold.set()
    for stream in streams[1:]:
        async for _ in stream:
            pass
    assert connection.outstanding == 0


async def test_closing_an_answer_early_cancels_it_on_the_server(
    connection: ModelServerConnection, replica: FakeReplica
) -> None:
    async with aclosing(connection.generate(ask(1000))) as chunks:
        assert (await anext(chunks)).text == "0"
    await until(lambda: replica.cancelled)
    assert replica.cancelled == [1]
    assert await text(connection, 2) == "0 1"


async def test_a_cancelled_task_cancels_its_request_on_the_server(
    connection: ModelServerConnection, replica: FakeReplica
) -> None:
    replica.hold.clear()
    task = asyncio.create_task(text(connection, 1000))
    await until(lambda: connection.outstanding)
    await until(lambda: replica.asked)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: replica.cancelled)


async def test_a_failure_is_raised_as_what_the_server_raised_and_harms_no_other_request(
    connection: ModelServerConnection, replica: FakeReplica
) -> None:
    replica.hold.clear()
    other = connection.generate(ask(3))
    await anext(other)
    replica.fail = [QueueFull("8 requests wait already", retry_after_s=1.5)]
    with pytest.raises(QueueFull, match="8 requests wait already") as caught:
        await text(connection, 2)
    assert caught.value.retry_after_s == 1.5
    replica.fail = [PromptTooLong("9 tokens are more than 8", param="prompt")]
    with pytest.raises(PromptTooLong) as caught_too:
        await text(connection, 2)
    assert caught_too.value.param == "prompt"
    replica.hold.set()
    assert [chunk.text async for chunk in other] == ["1", "2"]
    assert replica.cancelled == []


async def test_a_broken_connection_fails_every_open_request_at_once(
    connection: ModelServerConnection, replica: FakeReplica
) -> None:
    replica.hold.clear()
    streams = [connection.generate(ask(1000)) for _ in range(5)]
    for stream in streams:
        await anext(stream)
    await replica.stop()
    for stream in streams:
        with pytest.raises(ReplicaLost, match=replica.address):
            await anext(stream)
    assert connection.load == (True, 0)


async def test_the_connection_comes_back_on_the_next_use(replica: FakeReplica) -> None:
    connection = ModelServerConnection(replica.address)
    assert await text(connection, 2) == "0 1"
    port = int(replica.address.rpartition(":")[2])
    await replica.stop()
    with pytest.raises(ReplicaLost):
        await text(connection, 2)
    again = FakeReplica()
    await again.start(port)
    answer = ""
    while not answer:  # gRPC waits a moment between attempts to connect
        try:
            answer = await text(connection, 3)
        except ReplicaLost:
            await asyncio.sleep(0.05)
    assert answer == "0 1 2"
    await connection.close()
    await again.stop()


@pytest.mark.extended
async def test_a_late_answer_is_a_deadline_exceeded_and_is_cancelled(
    connection: ModelServerConnection, replica: FakeReplica
) -> None:
    replica.hold.clear()
    with pytest.raises(DeadlineExceeded, match=r"within 0\.05 s"):
        async for _ in connection.generate(ask(1000), timeout_s=0.05):
            pass
    await until(lambda: replica.cancelled)


async def test_a_request_no_message_can_hold_is_refused_by_name(
    connection: ModelServerConnection,
) -> None:
    with pytest.raises(InvalidRequest, match="prompt cannot be sent") as caught:
        await anext(connection.generate(ask(1, prompt="\ud800")))
    assert caught.value.param == "prompt"


async def test_closing_the_connection_ends_open_requests_with_cancelled(
    replica: FakeReplica,
) -> None:
    replica.hold.clear()
    connection = ModelServerConnection(replica.address)
    stream = connection.generate(ask(1000))
    await anext(stream)
    await connection.close()
    with pytest.raises(Cancelled):
        await anext(stream)


async def test_a_sink_gets_the_chunks_an_iterator_would(connection: ModelServerConnection) -> None:
    chunks: list[TokenChunk] = []
    await connection.generate_to(ask(3), chunks.append)
    assert chunks == [chunk async for chunk in connection.generate(ask(3))]


async def test_a_request_of_a_sink_fails_alone_and_typed(
    connection: ModelServerConnection, replica: FakeReplica
) -> None:
    replica.fail.append(QueueFull("32 requests wait", retry_after_s=2.0))
    chunks: list[TokenChunk] = []
    with pytest.raises(QueueFull, match="32 requests wait"):
        await connection.generate_to(ask(3), chunks.append)
    assert chunks == []
    assert replica.cancelled == []


async def test_a_sink_that_raises_ends_its_own_request_only(
    connection: ModelServerConnection, replica: FakeReplica
) -> None:
    def sink(chunk: TokenChunk) -> None:
        raise ValueError(chunk.text)

    other: list[TokenChunk] = []
    bad, good = await asyncio.gather(
        connection.generate_to(ask(1000), sink),
        connection.generate_to(ask(5), other.append),
        return_exceptions=True,
    )
    assert isinstance(bad, ValueError)
    assert (good, len(other)) == (None, 5)
    await until(lambda: replica.cancelled)


async def test_cancelling_the_wait_of_a_sink_cancels_on_the_server(
    connection: ModelServerConnection, replica: FakeReplica
) -> None:
    replica.hold.clear()
    chunks: list[TokenChunk] = []
    waiting = asyncio.create_task(connection.generate_to(ask(1000), chunks.append))
    await until(lambda: chunks)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await until(lambda: replica.cancelled)
    assert len(chunks) == 1


@pytest.mark.extended
async def test_a_lost_or_late_answer_is_the_error_of_whoever_waits_for_the_sink(
    connection: ModelServerConnection, replica: FakeReplica
) -> None:
    replica.hold.clear()
    with pytest.raises(DeadlineExceeded):
        await connection.generate_to(ask(1000), lambda _: None, timeout_s=0.05)
    chunks: list[TokenChunk] = []
    waiting = asyncio.create_task(connection.generate_to(ask(1000), chunks.append))
    await until(lambda: chunks)
    await replica.stop()
    with pytest.raises(ReplicaLost, match=replica.address):
        await waiting


@pytest.mark.extended
async def test_a_server_that_falls_silent_loses_every_open_request(replica: FakeReplica) -> None:
    connection = ModelServerConnection(replica.address, silence_s=0.4)
    replica.hold.clear()
    streams = [connection.generate(ask(1000)) for _ in range(3)]
    for stream in streams:
        await anext(stream)
    await asyncio.sleep(1)  # beats alone keep them
    replica.silent = True
    for stream in streams:
        with pytest.raises(ReplicaLost, match="silent"):
            await anext(stream)
    assert connection.load == (True, 0)
    await connection.close()


@pytest.mark.extended
async def test_a_request_on_an_idle_stream_of_a_silent_server_is_lost(
    replica: FakeReplica,
) -> None:
    connection = ModelServerConnection(replica.address, silence_s=0.4)
    replica.hold.clear()
    async with aclosing(connection.generate(ask(1000))) as first:
        await anext(first)
        await until(lambda: True in replica.asked_to_beat)
        await asyncio.sleep(0.1)
    await until(lambda: replica.asked_to_beat[-1:] == [False])
    replica.silent = True
    with pytest.raises(ReplicaLost, match="silent"):
        await text(connection, 2)
    with pytest.raises(ReplicaLost, match="silent"):
        await text(connection, 2)
    replica.silent = False
    replica.hold.set()
    assert await text(connection, 3) == "0 1 2"
    await connection.close()


@pytest.mark.extended
async def test_silence_of_a_server_without_beats_is_waited_out(replica: FakeReplica) -> None:
    connection = ModelServerConnection(replica.address, silence_s=0.2)
    replica.beats = False
    replica.hold.clear()
    stream = connection.generate(ask(3))
    await anext(stream)
    await asyncio.sleep(1)
    replica.hold.set()
    assert [chunk.text async for chunk in stream] == ["1", "2"]
    await connection.close()


async def test_the_time_left_goes_with_the_request_and_the_servers_own_words_come_back(
    connection: ModelServerConnection, replica: FakeReplica
) -> None:
    replica.fail = [DeadlineExceeded("the time limit of 30 s passed: it was in the queue")]
    with pytest.raises(DeadlineExceeded, match="in the queue"):
        await anext(connection.generate(ask(2), timeout_s=30.0))
    assert [asked.timeout_s for asked in replica.asked] == [30.0]
    assert await text(connection, 2) == "0 1"
    assert replica.asked[-1].timeout_s is None


class Owner:
    """What a connection tells its pulse, and hears from it."""

    def __init__(self) -> None:
        self.owes: bool = True
        self.asked: list[bool] = []
        self.silent_at_s: list[float] = []
        self.pulse = Pulse(lambda: self.owes, self.asked.append, self.note_silence)

    def note_silence(self) -> None:
        self.silent_at_s.append(virtual_loop.now())

    def hear_a_beat(self) -> None:
        self.pulse.heard = self.pulse.beats = True


def test_a_server_that_beats_and_falls_silent_is_reported_within_five_seconds() -> None:
    async def story() -> None:
        owner = Owner()
        owner.pulse.watch()
        for _ in range(20):
            await asyncio.sleep(1)
            owner.hear_a_beat()
        heard_s = virtual_loop.now()
        assert owner.silent_at_s == []
        await asyncio.sleep(60)
        (silent_at_s,) = owner.silent_at_s
        assert SILENCE_S <= silent_at_s - heard_s <= 5

    virtual_loop.run(story())


def test_a_server_that_never_beat_may_be_silent_for_long() -> None:
    async def story() -> None:
        owner = Owner()
        owner.pulse.watch()
        await asyncio.sleep(1)
        owner.pulse.heard = True  # chunks, without beats
        await asyncio.sleep(600)
        assert owner.silent_at_s == []

    virtual_loop.run(story())


def test_a_server_that_beat_once_is_judged_by_its_next_stream_too() -> None:
    async def story() -> None:
        owner = Owner()
        owner.hear_a_beat()
        owner.pulse.watch()
        began_s = virtual_loop.now()
        await asyncio.sleep(60)
        (silent_at_s,) = owner.silent_at_s
        assert SILENCE_S <= silent_at_s - began_s <= 5

    virtual_loop.run(story())


def test_with_nothing_owed_beats_are_called_off_and_silence_is_no_loss() -> None:
    async def story() -> None:
        owner = Owner()
        owner.pulse.watch()
        owner.hear_a_beat()
        await asyncio.sleep(1)
        owner.owes = False
        await asyncio.sleep(60)
        assert (owner.asked, owner.silent_at_s) == ([True, False], [])
        owner.owes = True
        owner.pulse.watch()
        owner.pulse.watch()
        assert owner.asked == [True, False, True]
        await asyncio.sleep(60)
        assert len(owner.silent_at_s) == 1

    virtual_loop.run(story())


def test_a_stopped_pulse_reports_nothing() -> None:
    async def story() -> None:
        owner = Owner()
        owner.hear_a_beat()
        owner.pulse.watch()
        owner.pulse.stop()
        await asyncio.sleep(60)
        assert owner.silent_at_s == []

    virtual_loop.run(story())


@given(st.lists(st.floats(0.01, 12.0), min_size=1, max_size=20))
def test_only_gaps_of_the_silence_limit_are_losses(gaps_s: list[float]) -> None:
    async def story() -> None:
        owner = Owner()
        owner.hear_a_beat()
        owner.pulse.watch()
        for gap_s in gaps_s:
            heard_s, before = virtual_loop.now(), len(owner.silent_at_s)
            await asyncio.sleep(gap_s)
            reported = len(owner.silent_at_s) > before
            assert not (reported and gap_s < SILENCE_S)
            assert reported or gap_s < 5
            if reported:
                assert owner.silent_at_s[-1] - heard_s <= 5
                owner.pulse.watch()
            owner.hear_a_beat()

    virtual_loop.run(story())
