"""Two whole servers in one process, arithmetic models: one computes the other's prompts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any

import msgspec
import pytest

from model_server.disaggregation import prefill_servers
from model_server.disaggregation.disaggregation import is_remote, worthwhile
from model_server.disaggregation.handed_pages import PageCount
from model_server.disaggregation.handoff import encode_ask
from model_server.disaggregation.prefill_servers import PrefillServer
from model_server.engine.request import EngineRequest
from model_server.engine.types import Sampling
from sax.errors import InvalidRequest, QueueFull, SaxError, UnsupportedParameter
from sax.proto import prefill_pb2, prefill_pb2_grpc
from tests.model_server.engine.fake_runner import GREEDY
from tests.model_server.fake_model import LIMITS, FakeModels, answer_to
from tests.model_server.fake_server import MODEL, Served, Stream, error_of, serving
from tests.model_server.waiting import until

PROMPT = "it was a bright cold day in April, and the clocks were striking thirteen; " * 2
PAGES = -(-len(PROMPT) // LIMITS.page_size)
assert len(PROMPT) >= worthwhile(LIMITS)


def test_a_prompt_that_fills_the_short_context_is_computed_here() -> None:
    length = worthwhile(LIMITS)
    assert is_remote(length, LIMITS)
    assert not is_remote(length - 1, LIMITS)
    short = msgspec.structs.replace(LIMITS, short_context=length)
    assert not is_remote(length, short)
    assert is_remote(length + 1, short)


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill_servers, "_PERIOD_S", 0.05)


@asynccontextmanager
async def both(
    *, prefill: dict[str, Any] | None = None, **flags: object
) -> AsyncIterator[tuple[Served, Served]]:
    """The server that decodes, and the one that computes its prompts and holds the model."""
    network: dict[int, Any] = {}
    theirs = FakeModels(network=network, **(prefill or {}))
    async with (
        serving(theirs, sax_cell="", prefill=True, metrics_port=0, **flags) as other,
        serving(
            FakeModels(network=network), metrics_port=0, prefill_servers=(other.server.address,)
        ) as ours,
    ):
        await until(lambda: chosen(ours) is not None)
        yield ours, other
        await until(lambda: ours.servable().stats().slots_used == 0)
        assert ours.servable().stats().pages_used == 0
        assert ours.servable().loaded.disaggregation.transfers.here == {}  # pyright: ignore


def chosen(served: Served) -> PrefillServer | None:
    return served.server._prefill.choose(MODEL)


def offered(served: Served) -> int:
    disaggregation = served.servable().loaded.disaggregation
    assert disaggregation is not None
    return disaggregation.outgoing.used.pages


def moved(served: Served) -> Any:
    disaggregation = served.servable().loaded.disaggregation
    assert disaggregation is not None
    return disaggregation.moved


async def answer(served: Served, prompt: str = PROMPT, **sampling: object) -> tuple[int, ...]:
    stream = Stream(served)
    await stream.ask(1, prompt, **sampling)
    await stream.until_over(1)
    assert not stream.failures, stream.failures
    return stream.tokens(1)


async def test_answers_are_those_of_one_server_and_no_prompt_is_computed_here() -> None:
    async with both() as (ours, other):
        assert await answer(ours, max_tokens=20) == answer_to(PROMPT, 20)
        warm = Sampling(1.0, 0, 1.0, seed=9)
        got = await answer(ours, max_tokens=20, temperature=1.0, seed=9)
        assert got == answer_to(PROMPT, 20, warm)
        assert ours.servable().stats().prefill_tokens == 0
        assert other.servable().stats().prefill_tokens == 2 * len(PROMPT)
        assert await ours.metric("sax_prompts_fetched_total") == 2
        assert await ours.metric("sax_kv_fetched_bytes_total") == 2 * PAGES * 8
        assert await ours.metric("sax_prompts_computed_here_total") == 0
        assert await other.metric("sax_prompts_offered_total") == 2
        await until(lambda: offered(other) == 0)
        assert await other.metric("sax_kv_expired_total") == 0


async def test_logprobs_are_those_of_one_server() -> None:
    async with both() as (ours, other):
        streams = [Stream(ours), Stream(other)]
        for stream in streams:
            await stream.ask(1, PROMPT, max_tokens=5, logprobs=3)
            await stream.until_over(1)
        found = [[chunk.logprobs for chunk in stream.chunks[1]] for stream in streams]
        assert list(chain(*found[0])) == list(chain(*found[1]))
        assert moved(ours).fetched == 1


async def test_a_prompt_of_one_step_is_computed_here() -> None:
    async with both() as (ours, other):
        short = PROMPT[: worthwhile(LIMITS) - 1]
        assert await answer(ours, short, max_tokens=3) == answer_to(short, 3)
        assert moved(other).offered == 0
        assert moved(ours).computed_here == 0


async def test_a_beam_search_is_computed_here() -> None:
    async with both() as (ours, other):
        stream = Stream(ours)
        await stream.ask(1, PROMPT, max_tokens=4, beam_size=3, stop_token_ids=(7, 60))
        await stream.until_over(1)
        assert len(stream.chunks[1][0].hypotheses) == 3
        assert moved(other).offered == 0
        assert ours.servable().stats().prefill_tokens == len(PROMPT)


async def test_an_answer_that_ends_with_its_first_token_moves_no_pages() -> None:
    async with both() as (ours, other):
        first = answer_to(PROMPT, 1)
        assert await answer(ours, max_tokens=1) == first
        assert await answer(ours, max_tokens=9, stop_token_ids=first) == first
        assert moved(ours).fetched == 0
        assert ours.servable().stats().steps == 0
        await until(lambda: offered(other) == 0)


async def test_a_full_prefill_server_means_that_prompts_are_computed_here() -> None:
    async with both(prefill={"room": PAGES - 1}) as (ours, other):
        assert await answer(ours, max_tokens=7) == answer_to(PROMPT, 7)
        assert moved(ours).computed_here == 1
        assert moved(ours).fetched == 0
        await until(lambda: chosen(ours) is not None)  # asked again soon
        assert other.servable().stats().running == 0


async def test_servers_that_keep_pages_otherwise_are_told_and_compute_apart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with both(prefill={"page_size_told": 99}) as (ours, _):
        assert await answer(ours, max_tokens=7) == answer_to(PROMPT, 7)
        assert moved(ours).computed_here == 1
        assert "page size: 99 here, 4 there" in caplog.text


async def test_pages_that_are_lost_on_their_way_are_computed_here_after_the_first_token() -> None:
    async with both() as (ours, other):

        def lost(*_: object) -> None:
            raise QueueFull("the cable was cut")

        ours.servable().loaded.disaggregation.transfers.fetch = lost  # pyright: ignore
        assert await answer(ours, max_tokens=7) == answer_to(PROMPT, 7)
        assert ours.servable().stats().prefill_tokens == len(PROMPT) + 1
        assert (moved(ours).fetched, moved(ours).computed_here) == (0, 1)
        await until(lambda: offered(other) == 0)


async def test_what_nobody_fetches_expires_and_is_free() -> None:
    async with both(kv_expiry_seconds=2.0) as (ours, other):
        ask = await asked(ours)
        handoff = await stub(other).Prefill(ask)
        assert handoff.token == answer_to(PROMPT, 1)[0]
        assert offered(other) == PAGES
        await until(lambda: offered(other) == 0)
        assert await other.metric("sax_kv_expired_total") == 1
        assert await other.metric("sax_kv_pages_offered") == 0
        transfers: Any = ours.servable().loaded.disaggregation.transfers  # pyright: ignore
        assert transfers.reserve(ask.key, PageCount(PAGES))
        with pytest.raises(SaxError, match="nobody offers that"):
            transfers.fetch(ask.key, handoff.addresses, 1.0)
        transfers.drop(ask.key)


async def test_a_key_is_used_once_and_a_bad_prompt_is_refused() -> None:
    async with both() as (ours, other):
        ask = await asked(ours)
        await stub(other).Prefill(ask)
        again = await error_of(stub(other).Prefill(ask))
        assert isinstance(again, InvalidRequest)
        assert again.param == "key"
        await stub(other).Release(prefill_pb2.ReleaseRequest(key=ask.key))
        assert offered(other) == 0
        await stub(other).Release(prefill_pb2.ReleaseRequest(key=ask.key))
        ask.tokens[0] = 100_000
        assert isinstance(await error_of(stub(other).Prefill(ask)), InvalidRequest)
        assert offered(other) == 0


async def test_a_caller_that_goes_away_leaves_nothing_on_either_side() -> None:
    """While the prompt is computed, and while it decodes."""
    async with both(prefill={"delay_s": 0.02}) as (ours, other):
        for wait_s in (0.0, 0.01, 0.03, 0.05, 0.08, 0.12):
            stream = Stream(ours)
            await stream.ask(1, PROMPT, max_tokens=300)
            await asyncio.sleep(wait_s)
            await stream.cancel(1)
            stream.call.cancel()
        await until(lambda: ours.servable().stats().running == 0)
        await until(lambda: other.servable().stats().running == 0)
        await until(lambda: offered(other) == 0)
        traffic: Any = other.servable().loaded.disaggregation.transfers  # pyright: ignore
        await until(lambda: traffic.offered == set())
        assert await answer(ours, max_tokens=4) == answer_to(PROMPT, 4)


async def test_a_prefill_server_that_goes_away_is_done_without() -> None:
    network: dict[int, Any] = {}
    async with serving(FakeModels(network=network), sax_cell="", prefill=True) as other:
        address = other.server.address
        async with serving(FakeModels(network=network), prefill_servers=(address,)) as ours:
            await until(lambda: chosen(ours) is not None)
            await other.server._server.stop(None)
            assert await answer(ours, max_tokens=7) == answer_to(PROMPT, 7)
            await until(lambda: chosen(ours) is None)
            assert await answer(ours, max_tokens=7) == answer_to(PROMPT, 7)
            assert moved(ours).computed_here == 2


async def test_the_prefill_server_is_told_to_load_and_to_unload() -> None:
    network: dict[int, Any] = {}
    theirs = FakeModels(network=network)
    async with serving(theirs, sax_cell="", prefill=True) as other:
        await other.server.servables.unload(MODEL)
        address = other.server.address
        async with serving(FakeModels(network=network), prefill_servers=(address,)) as ours:
            await until(lambda: chosen(ours) is not None)
            assert other.servable().model_id == MODEL
            await other.server.servables.unload(MODEL)  # as if it had started again
            await until(lambda: len(theirs.loads) == 3 and chosen(ours) is not None)
            await ours.server.servables.unload(MODEL)
            await until(lambda: not list(other.server.servables.loaded()))


async def test_prompts_go_to_servers_by_turns() -> None:
    network: dict[int, Any] = {}
    async with (
        serving(FakeModels(network=network), sax_cell="", prefill=True) as one,
        serving(FakeModels(network=network), sax_cell="", prefill=True) as two,
        serving(
            FakeModels(network=network),
            prefill_servers=(one.server.address, two.server.address),
        ) as ours,
    ):
        servers = ours.server._prefill._servers
        await until(lambda: all(server.usable(MODEL) for server in servers))
        for _ in range(4):
            await answer(ours, max_tokens=2)
        assert (moved(one).offered, moved(two).offered) == (2, 2)


async def test_a_full_queue_is_told_before_the_prompt_goes_anywhere() -> None:
    gate = threading.Semaphore(0)
    async with both(prefill={"gate": gate}) as (ours, _):
        stream = Stream(ours)
        most = LIMITS.slots + LIMITS.queue
        for id in range(1, most + 2):
            await stream.ask(id, PROMPT, max_tokens=2)
        await stream.until_over(most + 1)
        gate.release(10_000)
        await stream.until_over(*range(1, most + 1))
        assert isinstance(stream.failures[most + 1], QueueFull)
        assert len(stream.failures) == 1
        assert all(stream.tokens(id) == answer_to(PROMPT, 2) for id in range(1, most + 1))


async def test_a_server_of_a_cell_computes_no_prompts_for_others() -> None:
    async with serving(FakeModels()) as lone:
        sampling = msgspec.msgpack.encode({})
        ask = prefill_pb2.PrefillRequest(model_key=MODEL, tokens=[1], key=1, sampling=sampling)
        error = await error_of(stub(lone).Prefill(ask))
        assert isinstance(error, UnsupportedParameter)
        assert "--prefill" in error.text


def stub(served: Served) -> Any:
    return prefill_pb2_grpc.PrefillServiceStub(served.channel)


async def asked(ours: Served) -> prefill_pb2.PrefillRequest:
    """What `ours` would ask for PROMPT, under a key of the test's."""
    disaggregation = ours.servable().loaded.disaggregation
    assert disaggregation is not None
    engine_request = EngineRequest(
        prompt=tuple(PROMPT.encode()), sampling=GREEDY, max_tokens=9, stop_ids=frozenset()
    )
    return encode_ask(MODEL, disaggregation.contract, engine_request, key=12345)
