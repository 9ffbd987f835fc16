"""Real processes with the real loader: one decodes, another computes its prompts."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc.aio
import jaxlib.version
import pytest

from model_server.disaggregation.contract import Contract, source_of
from model_server.disaggregation.handoff import encode_ask
from model_server.engine.request import EngineRequest
from model_server.engine.types import Sampling
from sax.types import ModelSpec, SamplingParams, TokenChunk
from tests.demo_model import demo_model
from tests.model_server.checkpoints.tiny_folder import write_tiny
from tests.model_server.disaggregation.servers import MODEL, SPEC, Caller, Child, server, tokens
from tests.model_server.loading.test_recurrent_models import folder_of

pytestmark = pytest.mark.timeout(900)

IN_A_CELL = ("--sax_cell=/sax/test", "--admin=127.0.0.1:9")  # where nobody listens
PROMPT = [(7 * at * at + 3) % 500 + 3 for at in range(333)]
PAGES = 21  # of 16 tokens
GREEDY: dict[str, object] = {"max_tokens": 16, "logprobs": 3}
SEEDED: dict[str, object] = {**GREEDY, "temperature": 1.0, "seed": 7}


@asynccontextmanager
async def calling(child: Child) -> AsyncIterator[Caller]:
    caller = Caller(child)
    try:
        yield caller
    finally:
        await caller.close()


async def until_fetched(decode: Caller, prompt: Sequence[int] = PROMPT) -> None:
    """Ask until a prefill server is used: it loads the model after the decode server has."""
    before = await decode.metric("sax_prompts_fetched_total")
    async with asyncio.timeout(400):
        while True:
            await decode.ask(prompt, max_tokens=2)
            if await decode.metric("sax_prompts_fetched_total") > before:
                return
            await asyncio.sleep(0.3)


async def check_equal(decode: Caller, lone: Caller, prompt: Sequence[int]) -> None:
    """The decode server's answers are the lone server's, and it computed no prompt."""
    fetched = await decode.metric("sax_prompts_fetched_total")
    for sampling in (GREEDY, SEEDED):
        ours, theirs = await decode.ask(prompt, **sampling), await lone.ask(prompt, **sampling)
        assert tokens(ours) == tokens(theirs)
        assert len(tokens(ours)) == 16
        assert likeliest(ours) == likeliest(theirs)
    assert await decode.metric("sax_prompts_fetched_total") == fetched + 2


def likeliest(chunks: Sequence[TokenChunk]) -> list[list[tuple[int, float]]]:
    """For each token itself and its rivals, with their log-probabilities."""
    return [
        [(each.token_id, round(each.logprob, 4)) for each in (logprob, *logprob.top)]
        for chunk in chunks
        for logprob in chunk.logprobs
    ]


@pytest.mark.nightly
async def test_two_servers_give_the_answers_of_one_and_one_goes_on_alone() -> None:
    async with (
        server("--kv_expiry_seconds=1.5") as first,
        server(*IN_A_CELL, f"--prefill_servers={first.address}") as second,
        calling(first) as prefill,
        calling(second) as decode,
    ):
        await decode.load()
        await until_fetched(decode)
        await check_equal(decode, prefill, PROMPT)
        await check_expiry(prefill)
        assert await decode.metric("sax_compiles_while_serving_total", None) == 0
        assert await prefill.metric("sax_compiles_while_serving_total", None) == 0
        await check_loss(decode, first)


async def check_expiry(prefill: Caller) -> None:
    """What nobody fetches is given up after its time, and the next prompt finds room again."""
    for turn in range(2):
        for number in range(6):  # of 21 pages: a seventh finds no room in 4 contexts of 34
            await prefill.prefill.Prefill(an_ask(100 * turn + number + 1))
        assert await prefill.metric("sax_kv_pages_offered") == 6 * PAGES
        with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
            await prefill.prefill.Prefill(an_ask(100 * turn + 99))
        await prefill.until("sax_kv_expired_total", 6 * (turn + 1))
        assert await prefill.metric("sax_kv_pages_offered") == 0


async def check_loss(decode: Caller, first: Child) -> None:
    """A stream that runs goes on, and so do prompts that come, while the prefill server dies."""
    alone = await decode.ask(PROMPT, **SEEDED)
    fetched = await decode.metric("sax_prompts_fetched_total")
    asking = [asyncio.create_task(decode.ask(PROMPT, **SEEDED)) for _ in range(3)]
    first.signal(signal.SIGKILL)
    asking += [asyncio.create_task(decode.ask(PROMPT, **SEEDED)) for _ in range(3)]
    for task in asking:
        assert tokens(await task) == tokens(alone)
    computed_here = await decode.metric("sax_prompts_computed_here_total")
    assert tokens(await decode.ask(PROMPT, **SEEDED)) == tokens(alone)
    assert await decode.metric("sax_prompts_computed_here_total") == computed_here + 1
    assert await decode.metric("sax_prompts_fetched_total") <= fetched + 6


def an_ask(key: int) -> object:
    contract = Contract(
        source=source_of(replace(SPEC, replicas=0)),
        page_size=16,
        kv_dtype="float32",
        layers=2,
        kv_heads=2,
        key_dim=32,
        value_dim=32,
        mesh="replica=1 data=1 model=1",
        hosts=1,
        jaxlib=jaxlib.version.__version__,
    )
    sampling = Sampling(0.0, 0, 1.0, seed=0)
    engine_request = EngineRequest(
        prompt=tuple(PROMPT), sampling=sampling, max_tokens=1, stop_ids=frozenset()
    )
    return encode_ask(MODEL, contract, engine_request, key)


@pytest.mark.nightly
async def test_servers_with_a_draft_model_give_the_answers_of_one_without(tmp_path: Path) -> None:
    folder = str(write_tiny(tmp_path / "tiny", max_position_embeddings=1024))
    overrides = {"DTYPE": '"float32"'}
    plain = replace(SPEC, model_path="auto", checkpoint=folder, overrides=overrides)
    draft = {"SPECULATION": '"draft"', "DRAFT_MODEL": f'"{folder}"'}
    spec = replace(plain, overrides=overrides | draft)
    prompt = [each % 250 for each in PROMPT]
    async with (
        server() as lone,
        server() as first,
        server(*IN_A_CELL, f"--prefill_servers={first.address}") as second,
        calling(lone) as judge,
        calling(first) as prefill,
        calling(second) as decode,
    ):
        await judge.load(plain)
        await decode.load(spec)
        await until_fetched(decode, prompt)
        await check_equal(decode, judge, prompt)
        for each in (decode, prefill):
            assert await each.metric("sax_compiles_while_serving_total", None) == 0


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["lfm2", "gemma3"])
async def test_states_and_windows_are_handed_over(name: str, tmp_path: Path) -> None:
    folder = folder_of(name, tmp_path, max_position_embeddings=1024)
    overrides = {"DTYPE": '"float32"', "MAX_CONTEXT": "512"}
    spec = replace(SPEC, model_path="auto", checkpoint=folder, overrides=overrides)
    prompt = [each % 250 for each in PROMPT]
    async with (
        server() as first,
        server(*IN_A_CELL, f"--prefill_servers={first.address}") as second,
        calling(first) as prefill,
        calling(second) as decode,
    ):
        await decode.load(spec)
        await until_fetched(decode, prompt)
        for size in (333, 320, 300):  # the end is inside a page, at its border and inside again
            await check_equal(decode, prefill, prompt[:size])
        for each in (decode, prefill):
            assert await each.metric("sax_compiles_while_serving_total", None) == 0


@pytest.mark.nightly
async def test_a_prefill_server_that_comes_back_or_wakes_up_is_used_again() -> None:
    async with (
        server() as lone,
        server() as first,
        server(*IN_A_CELL, f"--prefill_servers={first.address}") as second,
        calling(lone) as judge,
        calling(second) as decode,
    ):
        await judge.load()
        await decode.load()
        await until_fetched(decode)
        port = int(first.address.rpartition(":")[2])
        first.signal(signal.SIGSTOP)  # what waits for it is computed here, within seconds
        wanted = tokens(await judge.ask(PROMPT, **SEEDED))
        asking = [decode.ask(PROMPT, **SEEDED) for _ in range(4)]
        assert [tokens(each) for each in await asyncio.gather(*asking)] == [wanted] * 4
        first.signal(signal.SIGCONT)
        await until_fetched(decode)
        first.signal(signal.SIGKILL)
        await first.process.wait()
        assert tokens(await decode.ask(PROMPT, **SEEDED)) == wanted
        async with server(port=port):
            await until_fetched(decode)
            await check_equal(decode, judge, PROMPT)
        told = re.findall("does not prefill|prefilling locally", second.text())
        assert 2 <= len(told) <= 6, second.text()


@pytest.mark.nightly
async def test_a_real_model_answers_as_one_server_does() -> None:
    spec = ModelSpec(model_id=MODEL, model_path="llama", checkpoint=str(demo_model()), replicas=0)
    flags = ("--max_context=1024", "--page_size=64")
    async with (
        server(*flags) as lone,
        server(*flags) as first,
        server(*flags, *IN_A_CELL, f"--prefill_servers={first.address}") as second,
        calling(lone) as judge,
        calling(second) as decode,
    ):
        await judge.load(spec)
        await decode.load(spec)
        prompt = [at * 13 % 3000 + 100 for at in range(700)]
        await until_fetched(decode, prompt)
        await check_equal(decode, judge, prompt)
        for sampling in (
            SamplingParams(temperature=0.0),
            SamplingParams(temperature=1.0, seed=3, top_k=40),
        ):
            asked = {"temperature": sampling.temperature, "seed": sampling.seed, "max_tokens": 48}
            asked["top_k"] = sampling.top_k
            answers = [await each.ask(prompt[5:], **asked) for each in (decode, judge)]
            assert tokens(answers[0]) == tokens(answers[1])
        bytes_moved = await decode.metric("sax_kv_fetched_bytes_total")
        seconds = await decode.metric("sax_kv_fetch_seconds_total")
        print(f"{bytes_moved / seconds / 1e6:.0f} MB/s, {bytes_moved} bytes in {seconds} s")  # noqa: T201
        assert bytes_moved > 0
        assert seconds > 0
