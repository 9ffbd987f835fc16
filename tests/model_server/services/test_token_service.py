"""The token stream over real gRPC on a free port, with arithmetic models."""

import asyncio
import threading
from itertools import accumulate

import grpc
import grpc.aio
import pytest

from sax.errors import InvalidRequest, NotLoaded, PromptTooLong, QueueFull, ShuttingDown
from sax.proto import tokens_pb2
from tests.model_server.engine.fake_runner import logprob
from tests.model_server.fake_model import LIMITS, FakeModels, answer_to, text_of
from tests.model_server.fake_server import MODEL, OTHER, Stream, error_of, lm_request, serving
from tests.model_server.waiting import until


async def test_tokens_stream_in_order_with_usage_and_a_finish_reason() -> None:
    async with serving(FakeModels()) as served:
        stream = Stream(served)
        await stream.ask(1, "hi", max_tokens=10)
        await stream.until_over(1)
        expected = answer_to("hi", 10)
        assert stream.tokens(1) == expected
        assert stream.text(1) == text_of(expected)
        chunks = stream.chunks[1]
        sizes = [len(chunk.token_ids) for chunk in chunks]
        assert [chunk.completion_tokens for chunk in chunks] == list(accumulate(sizes))
        assert {chunk.prompt_tokens for chunk in chunks} == {2}
        assert chunks[-1].finish_reason == "length"
        assert all(chunk.finish_reason is None for chunk in chunks[:-1])


async def test_tokens_that_wait_for_a_message_travel_as_one_chunk() -> None:
    """Between its first and its last message this server lets no time be enough."""
    async with serving(FakeModels(stream_interval_s=60.0)) as served:
        stream = Stream(served)
        await stream.ask(1, "hi", max_tokens=50, logprobs=0)
        await stream.until_over(1)
        assert stream.tokens(1) == answer_to("hi", 50)
        assert stream.text(1) == text_of(answer_to("hi", 50))
        chunks = stream.chunks[1]
        assert len(chunks) <= 2
        assert [len(chunk.token_ids) for chunk in chunks][-1] >= 49
        told = [logprob.token_id for chunk in chunks for logprob in chunk.logprobs]
        assert told == list(stream.tokens(1))
        assert chunks[-1].completion_tokens == 50


async def test_the_news_of_one_step_travel_in_one_message() -> None:
    gate = threading.Semaphore(0)
    async with serving(FakeModels(gate=gate)) as served:
        stream = Stream(served)
        for id in range(4):
            await stream.ask(id, max_tokens=20)
        servable = served.servable()
        await until(lambda: servable.stats().running + servable.stats().waiting == 4)
        gate.release(2)  # what was launched before the last question came
        await until(lambda: servable.stats().running == 4)
        gate.release(1000)
        await stream.until_over(0, 1, 2, 3)
        assert all(len(stream.tokens(id)) == 20 for id in range(4))
        assert stream.messages <= 23


async def test_a_stop_string_ends_the_answer_and_frees_its_slot() -> None:
    gate = threading.Semaphore(0)
    async with serving(FakeModels(gate=gate), metrics_port=0) as served:
        text = text_of(answer_to("hi", 100))
        stop = text[40:43]
        end = text.index(stop) + len(stop)
        stream = Stream(served)
        await stream.ask(1, "hi", max_tokens=500, stop=(stop,))
        gate.release(end)
        await stream.until_over(1)
        assert stream.text(1) == text[: end - len(stop)]
        assert stream.chunks[1][-1].finish_reason == "stop"
        gate.release(1)  # the step in flight: it is the last one
        await until(lambda: served.servable().stats().slots_used == 0)
        assert await served.metric("sax_generated_tokens_total") <= end + 1
        assert await served.metric("sax_requests_cancelled_total") == 0
        gate.release(1000)


async def test_a_stop_token_ends_the_answer_without_text_of_its_own() -> None:
    async with serving(FakeModels()) as served:
        tokens = answer_to("hi", 10)
        stream = Stream(served)
        await stream.ask(1, "hi", stop_token_ids=(tokens[4],))
        await stream.until_over(1)
        end = tokens.index(tokens[4])
        assert stream.text(1) == text_of(tokens[:end])
        assert stream.chunks[1][-1].completion_tokens == end + 1


async def test_logprobs_travel_with_their_rivals() -> None:
    async with serving(FakeModels()) as served:
        stream = Stream(served)
        await stream.ask(1, "hi", max_tokens=1, logprobs=2)
        await stream.until_over(1)
        (token,) = answer_to("hi", 1)
        (named,) = stream.chunks[1][0].logprobs
        assert named.token_id == token
        assert named.logprob == pytest.approx(logprob(list(b"hi"), token))
        assert [rival.token_id for rival in named.top] == [token, token + 1]


async def test_a_seed_makes_an_answer_repeatable_and_none_does_not() -> None:
    async with serving(FakeModels()) as served:
        stream = Stream(served)
        for id, seed in enumerate((3, 3, None, None)):
            await stream.ask(id, max_tokens=20, temperature=1.0, seed=seed)
        await stream.until_over(0, 1, 2, 3)
        assert stream.tokens(0) == stream.tokens(1)
        # One token in 97 may be alike by chance; two seeds alike modulo 97 give the same answer.
        assert len(stream.tokens(2)) == len(stream.tokens(3)) == 20


async def test_a_bad_request_fails_alone_and_the_stream_lives_on() -> None:
    async with serving(FakeModels()) as served:
        stream = Stream(served)
        await stream.ask(1, max_tokens=0)
        await stream.ask(2, prompt="")
        await stream.ask(3, model=OTHER)
        await stream.ask(4, prompt="x" * 600)
        await stream.ask(5, max_tokens=3)
        await stream.until_over(1, 2, 3, 4, 5)
        kinds = {id: type(error) for id, error in stream.failures.items()}
        assert kinds == {1: InvalidRequest, 2: InvalidRequest, 3: NotLoaded, 4: PromptTooLong}
        assert stream.failures[1].param == "max_tokens"
        assert "600" in stream.failures[4].text
        assert "512" in stream.failures[4].text
        assert MODEL in stream.failures[3].text
        assert stream.text(5) == text_of(answer_to("hi", 3))


async def test_a_caller_that_asks_for_beats_gets_them_while_nothing_happens() -> None:
    gate = threading.Semaphore(0)
    async with serving(FakeModels(gate=gate)) as served:
        stream = Stream(served)
        await stream.ask(1, max_tokens=20)
        await stream.call.write(tokens_pb2.ToServer(beats=True))
        for _ in range(2):
            message = await stream.call.read()
            assert (message.beats, len(message.chunks)) == (True, 0)
        await stream.call.write(tokens_pb2.ToServer(beats=False))
        gate.release(1000)
        chunks: list[tokens_pb2.Chunk] = []
        while not chunks or not chunks[-1].finish_reason:
            chunks.extend((await stream.call.read()).chunks)
        assert sum(len(chunk.token_ids) for chunk in chunks) == 20
        await stream.call.done_writing()
        assert not await stream.read()


async def test_a_caller_that_does_not_ask_for_beats_gets_none() -> None:
    gate = threading.Semaphore(0)
    async with serving(FakeModels(gate=gate)) as served:
        asking, other = Stream(served), Stream(served)
        await other.ask(1, max_tokens=3)
        await asking.call.write(tokens_pb2.ToServer(beats=True))
        for _ in range(2):
            assert (await asking.call.read()).beats
        gate.release(1000)
        await other.until_over(1)  # fails on a message without chunks


async def test_a_number_in_use_ends_the_stream_by_name() -> None:
    gate = threading.Semaphore(0)
    async with serving(FakeModels(gate=gate)) as served:
        stream = Stream(served)
        await stream.ask(1)
        await stream.ask(1)
        error = await error_of(stream.until_over(1))
        assert "request 1 is already running" in str(error)
        gate.release(1000)


async def test_a_full_queue_refuses_with_the_time_to_come_back() -> None:
    gate = threading.Semaphore(0)
    room = LIMITS.slots + LIMITS.queue
    async with serving(FakeModels(gate=gate)) as served:
        stream = Stream(served)
        for id in range(room + 1):
            await stream.ask(id, max_tokens=2)
        await stream.until_over(room)
        error = stream.failures[room]
        assert isinstance(error, QueueFull)
        assert error.retry_after_s is not None
        assert error.retry_after_s >= 1
        refused = served.lm.Generate(lm_request())
        assert await refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "sax-retry-after" in dict(await refused.trailing_metadata())
        gate.release(1000)
        await stream.until_over(*range(room))


async def test_a_request_with_a_field_that_is_too_large_fails_alone() -> None:
    async with serving(FakeModels()) as served:
        stream = Stream(served)
        await stream.ask(1, stop=("x" * 1025,))
        await stream.ask(2, model="m" * 201)
        await stream.ask(3, stop_token_ids=(1,) * 129)
        await stream.ask(4, "x" * (5 << 20))
        await stream.ask(5, max_tokens=3)
        await stream.until_over(1, 2, 3, 4, 5)
        assert {id: error.param for id, error in stream.failures.items()} == {
            1: "stop",
            2: "model_key",
            3: "stop_token_ids",
            4: "prompt",
        }
        assert "1025 bytes; at most 1024" in stream.failures[1].text
        assert len(stream.tokens(5)) == 3


async def test_a_cancel_frees_slot_and_pages_within_one_step() -> None:
    gate = threading.Semaphore(0)
    async with serving(FakeModels(gate=gate), metrics_port=0) as served:
        stream = Stream(served)
        await stream.ask(1)
        gate.release(3)
        while len(stream.tokens(1)) < 3:
            await stream.read()
        assert await served.metric("sax_slots_used") == 1
        assert await served.metric("sax_pages_used") > 0
        await stream.cancel(1)
        servable = served.servable()
        await until(lambda: servable.cancelled == 1)
        gate.release(1)  # the step in flight: it is the last one
        await until(lambda: servable.stats().slots_used == 0)
        assert await served.metric("sax_slots_used") == 0
        assert await served.metric("sax_pages_used") == 0
        assert await served.metric("sax_requests_cancelled_total") == 1
        gate.release(1000)


async def test_a_caller_that_goes_away_cancels_all_it_asked() -> None:
    gate = threading.Semaphore(0)
    async with serving(FakeModels(gate=gate), metrics_port=0) as served:
        stream = Stream(served)
        for id in range(3):
            await stream.ask(id)
        gate.release(3)
        while not stream.chunks:
            await stream.read()
        stream.call.cancel()
        servable = served.servable()
        await until(lambda: servable.cancelled == 3)
        gate.release(1)
        await until(lambda: servable.stats().slots_used == 0)
        assert await served.metric("sax_pages_used") == 0
        gate.release(1000)


async def test_a_stream_ends_when_its_caller_has_every_answer() -> None:
    async with serving(FakeModels()) as served:
        stream = Stream(served)
        await stream.ask(1, max_tokens=5)
        await stream.call.done_writing()
        while await stream.read():
            pass
        assert stream.tokens(1) == answer_to("hi", 5)
        assert await stream.call.code() is grpc.StatusCode.OK


async def test_a_request_tells_how_far_it_is() -> None:
    gate = threading.Semaphore(0)
    async with serving(FakeModels(gate=gate)) as served:
        stream = Stream(served)

        async def phases() -> dict[str, str]:
            names = [*(str(id) for id in range(9)), "unknown"]
            reply = await served.tokens.Phases(tokens_pb2.PhasesRequest(request_ids=names))
            return {one.request_id: one.phase for one in reply.requests}

        for id in range(LIMITS.slots + 1):
            await stream.ask(id, request_id=str(id), max_tokens=20)
        servable = served.servable()
        await until(lambda: servable.stats().running + servable.stats().waiting > LIMITS.slots)
        assert set((await phases()).values()) == {"prefill", "queued"}
        gate.release(3)
        await stream.read()
        told = await phases()
        assert told["0"] == "decode"
        assert told[str(LIMITS.slots)] == "queued"
        gate.release(1000)
        await stream.until_over(*range(LIMITS.slots + 1))
        assert await phases() == {}


async def test_tokenize_gives_the_ids_and_the_context() -> None:
    async with serving(FakeModels()) as served:
        text = tokens_pb2.TokenizeRequest(model_key=MODEL, text="hi")
        reply = await served.tokens.Tokenize(text)
        assert (list(reply.ids), reply.max_context) == ([104, 105], LIMITS.max_context)
        chat = tokens_pb2.TokenizeRequest(
            model_key=MODEL,
            chat=tokens_pb2.Chat(messages=[tokens_pb2.Message(role="user", content="hi")]),
        )
        reply = await served.tokens.Tokenize(chat)
        assert bytes(reply.ids) == b"user: hi\nassistant: "


async def test_tokens_come_with_their_texts_and_turn_into_text_again() -> None:
    async with serving(FakeModels()) as served:
        text = tokens_pb2.TokenizeRequest(model_key=MODEL, text="hi", token_texts=True)
        reply = await served.tokens.Tokenize(text)
        assert [*reply.token_texts] == ["h", "i"]
        back = tokens_pb2.DetokenizeRequest(model_key=MODEL, ids=[104, 105, 0xE2])
        assert (await served.tokens.Detokenize(back)).text == "hi\ufffd"
        long = tokens_pb2.DetokenizeRequest(model_key=MODEL, ids=[104] * 5000)
        assert (await served.tokens.Detokenize(long)).text == "h" * 5000
        unknown = tokens_pb2.DetokenizeRequest(model_key=MODEL, ids=[2**31 - 1])
        assert "tokens is token 2147483647" in str(
            await error_of(served.tokens.Detokenize(unknown))
        )


async def test_a_server_that_drains_answers_what_runs_and_refuses_the_rest() -> None:
    gate = threading.Semaphore(1)
    async with serving(FakeModels(gate=gate), drain_seconds=60.0) as served:
        stream = Stream(served)
        await stream.ask(1, max_tokens=40)
        await stream.read()
        stopping = asyncio.create_task(served.server.stop())
        await asyncio.sleep(0)
        await stream.ask(2)
        await stream.until_over(2)  # while the first one runs: with it the connection ends
        gate.release(1000)
        await stream.until_over(1)
        assert len(stream.tokens(1)) == 40
        assert isinstance(stream.failures[2], ShuttingDown)
        await stopping


async def test_two_models_answer_side_by_side() -> None:
    async with serving(FakeModels(), metrics_port=0) as served:
        await served.load(OTHER)
        stream = Stream(served)
        await stream.ask(1, "one", max_tokens=30)
        await stream.ask(2, "two", model=OTHER, max_tokens=30)
        await stream.until_over(1, 2)
        assert stream.tokens(1) == answer_to("one", 30)
        assert stream.tokens(2) == answer_to("two", 30)
        assert await served.metric("sax_generated_tokens_total", OTHER) == 30
