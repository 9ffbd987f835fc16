"""The request handler in one process: no wire, arithmetic models."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from model_server.loading.loaded import Loaded
from model_server.services.token_stream import TokenStream
from model_server.serving.admission import Admission
from model_server.serving.handler import GENERATE_STREAM, Handler
from model_server.serving.lm_servable import LmServable
from model_server.serving.metrics.registry import ModelServerMetrics
from model_server.serving.servables import Servables
from model_server.text.tokenizer import ByteTokenizer, IncrementalDecoder
from sax.errors import (
    DeadlineExceeded,
    Internal,
    InvalidRequest,
    NotLoaded,
    PromptTooLong,
    SaxError,
    ShuttingDown,
)
from sax.tracing import NO_TRACER, Tracer
from sax.types import GenerateRequest, Message, ModelSpec, ReplyOptions, SamplingParams, TokenChunk
from tests.model_server.engine.fake_runner import experts_of
from tests.model_server.fake_model import LIMITS, FakeModels, answer_to, text_of
from tests.model_server.waiting import until
from tests.skipped_time import skip

MODEL = "/sax/test/fake"


class BadDecoder:
    """Breaks on the second token."""

    def __init__(self) -> None:
        self.seen = 0

    def push(self, token_id: int) -> str:
        self.seen += 1
        if self.seen == 2:
            raise KeyError(token_id)
        return "x"

    def flush(self) -> str:
        return ""


class BadTokenizer(ByteTokenizer):
    """The first answer's decoder is broken."""

    made = 0

    def decoder(
        self, after: Sequence[int] = (), *, control: bool = False, marks: Collection[str] = ()
    ) -> IncrementalDecoder:
        self.made += 1
        return BadDecoder() if self.made == 1 else super().decoder(after)


class BadTokenizerModels(FakeModels):
    def __call__(self, spec: ModelSpec, report: object) -> Loaded:
        return replace(super().__call__(spec, lambda progress: None), tokenizer=BadTokenizer(256))


class HeldTokenizer(ByteTokenizer):
    """Encodes long texts only once it is let go, and counts the characters that it encodes."""

    def __init__(self) -> None:
        super().__init__(256)
        self.go = threading.Event()
        self.seen = 0

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        self.seen += len(text)
        if len(text) > 2000:
            assert self.go.wait(60)
        return super().encode(text, add_bos=add_bos)


class UntrustedTokenizer(ByteTokenizer):
    """Encodes in another process, so to say, and keeps the threads that wait for that."""

    def __init__(self) -> None:
        super().__init__(256)
        self.threads: set[threading.Thread] = set()

    @property
    def waits(self) -> bool:
        return True

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        self.threads.add(threading.current_thread())
        return super().encode(text, add_bos=add_bos)

    def encode_continuation(self, text: str) -> list[int]:
        self.threads.add(threading.current_thread())
        return super().encode_continuation(text)


class TokenizerModels(FakeModels):
    def __init__(self, tokenizer: ByteTokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer

    def __call__(self, spec: ModelSpec, report: object) -> Loaded:
        return replace(super().__call__(spec, lambda progress: None), tokenizer=self.tokenizer)


class ScoreOnlyModels(FakeModels):
    def __call__(self, spec: ModelSpec, report: object) -> Loaded:
        loaded = super().__call__(spec, lambda progress: None)
        return replace(loaded, methods=("lm.score",))


class FewRowsModels(FakeModels):
    """A model with an embedding for the first letters only."""

    def __call__(self, spec: ModelSpec, report: object) -> Loaded:
        return replace(super().__call__(spec, lambda progress: None), vocab=ord("c"))


@asynccontextmanager
async def handling(models: FakeModels, tracer: Tracer = NO_TRACER) -> AsyncIterator[Handler]:
    servables = Servables(models, drain_s=0)
    metrics = ModelServerMetrics(servables.loaded, lambda: 0)
    handler = Handler(servables, metrics, Admission(), tracer=tracer)
    await servables.load(
        ModelSpec(model_id=MODEL, model_path="fake", checkpoint="None", replicas=1)
    )
    try:
        yield handler
    finally:
        await servables.close()


def question(prompt: str = "hi", **sampling: object) -> GenerateRequest:
    params = SamplingParams(**({"temperature": 0.0, "max_tokens": 5} | sampling))  # pyright: ignore
    return GenerateRequest(model_id=MODEL, prompt=prompt, sampling=params)


async def collect(connection: TokenStream) -> dict[int, list[TokenChunk | SaxError]]:
    """Everything the requests of a connection yield."""
    connection.end()
    out: dict[int, list[TokenChunk | SaxError]] = {}
    while deliveries := await connection.take():
        for id, chunk in deliveries:
            out.setdefault(id, []).append(chunk)
    return out


def text(chunks: list[TokenChunk | SaxError]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, TokenChunk))


async def test_a_bug_in_one_answer_fails_that_answer_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with handling(BadTokenizerModels()) as handler:
        connection = TokenStream(handler, GENERATE_STREAM)
        connection.start(1, replace(question(), request_id="abc-1/cmpl-1-0"))
        connection.start(2, question())
        out = await collect(connection)
        assert isinstance(out[1][-1], Internal)
        assert "KeyError" not in out[1][-1].text
        assert "(request abc-1/cmpl-1-0)" in out[1][-1].text
        assert "(request abc-1/cmpl-1-0)" in caplog.text
        assert text(out[2]) == text_of(answer_to("hi", 5))
        assert await handler.admission.drain(60)


async def test_a_long_prompt_is_answered_like_a_short_one() -> None:
    prompt = "x" * 400
    async with handling(FakeModels()) as handler:
        connection = TokenStream(handler, GENERATE_STREAM)
        connection.start(1, question(prompt))
        assert text((await collect(connection))[1]) == text_of(answer_to(prompt, 5))
        ids, _ = await handler.tokenize(MODEL, "y" * 5000)
        assert ids == [ord("y")] * 5000


async def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    tokenizer = HeldTokenizer()
    async with handling(TokenizerModels(tokenizer)) as handler:
        connection = TokenStream(handler, GENERATE_STREAM)
        connection.start(1, question("x" * 2500))
        connection.start(2, question("hi"))
        assert {id for id, _ in await connection.take()} == {2}
        tokenizer.go.set()
        out = await collect(connection)
        assert isinstance(out[1][-1], PromptTooLong)  # what the engine says of 2,500 tokens


async def test_a_prompt_that_is_being_encoded_is_cancelled_without_waiting_for_it() -> None:
    tokenizer = HeldTokenizer()
    async with handling(TokenizerModels(tokenizer)) as handler:
        connection = TokenStream(handler, GENERATE_STREAM)
        connection.start(1, question("x" * 2500))
        await until(lambda: tokenizer.seen > 0)
        connection.cancel(1)
        connection.start(1, question("hi"))  # the id is free again
        assert text((await collect(connection))[1]) == text_of(answer_to("hi", 5))
        assert await handler.admission.drain(60)
        tokenizer.go.set()


async def test_the_event_loop_waits_for_no_process_that_encodes() -> None:
    tokenizer = UntrustedTokenizer()
    async with handling(TokenizerModels(tokenizer)) as handler:
        connection = TokenStream(handler, GENERATE_STREAM)
        connection.start(1, question("hi", bad_words=("ab",)))
        assert text((await collect(connection))[1])
    assert tokenizer.threads
    assert threading.current_thread() not in tokenizer.threads


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("x" * 70_000, "prompt"),
        ("\u4f60" * 22_000, "prompt"),
        ((Message("user", "x" * 70_000),), "messages"),
        ((Message("user", ""),) * 9_000, "messages"),
    ],
    ids=["text", "wide", "chat", "empty messages"],
)
async def test_what_cannot_fit_the_context_is_refused_without_encoding_it(
    prompt: str | tuple[Message, ...], param: str
) -> None:
    tokenizer = HeldTokenizer()
    async with handling(TokenizerModels(tokenizer)) as handler:
        with pytest.raises(PromptTooLong, match="at most 65536 can fit: .* 512 tokens") as caught:
            await handler.tokenize(MODEL, prompt)
        assert (caught.value.param, tokenizer.seen) == (param, 0)


async def test_a_text_of_many_tokens_is_refused_after_its_first_piece() -> None:
    tokenizer = HeldTokenizer()
    tokenizer.go.set()
    async with handling(TokenizerModels(tokenizer)) as handler:
        with pytest.raises(PromptTooLong, match="context length is 512 tokens"):
            await handler.tokenize(MODEL, "x" * 65_000)
        assert tokenizer.seen < 65_000
        with pytest.raises(PromptTooLong):
            await handler.score(MODEL, "x" * 65_000, ["a"])


async def test_a_method_the_model_does_not_serve_is_refused_with_those_it_does() -> None:
    async with handling(ScoreOnlyModels()) as handler:
        with pytest.raises(InvalidRequest, match="does not serve lm.generate_stream; it serves"):
            handler.start(question(), GENERATE_STREAM, print)
        assert (await handler.score(MODEL, "a", ["b"])).logprobs


async def test_a_score_of_a_token_without_an_embedding_is_refused() -> None:
    async with handling(FewRowsModels()) as handler:
        assert (await handler.score(MODEL, "a", ["b"])).logprobs
        with pytest.raises(InvalidRequest, match=r"token 99 \('c'\)"):
            await handler.score(MODEL, "a", ["c"])


async def test_draining_waits_for_what_runs_and_refuses_what_comes() -> None:
    async with handling(FakeModels(delay_s=0.005)) as handler:
        connection = TokenStream(handler, GENERATE_STREAM)
        connection.start(1, question(max_tokens=20))
        draining = asyncio.create_task(handler.admission.drain(60))
        await asyncio.sleep(0)
        with pytest.raises(ShuttingDown):
            handler.start(question(), GENERATE_STREAM, print)
        assert not draining.done()
        assert text((await collect(connection))[1]) == text_of(answer_to("hi", 20))
        assert await draining


async def test_draining_gives_up_after_its_time() -> None:
    async with handling(FakeModels(delay_s=0.01)) as handler:
        connection = TokenStream(handler, GENERATE_STREAM)
        connection.start(1, question(max_tokens=500))
        assert not await handler.admission.drain(0.01)
        connection.close()


async def test_a_closed_connection_leaves_nothing_running_and_nothing_pending() -> None:
    async with handling(FakeModels(delay_s=0.01)) as handler:
        connection = TokenStream(handler, GENERATE_STREAM)
        for id in range(3):
            connection.start(id, question(max_tokens=500))
        connection.close()
        connection.close()
        assert await connection.take() == []
        assert await handler.admission.drain(0)


async def test_a_score_whose_caller_goes_away_is_cancelled() -> None:
    models = FakeModels(delay_s=0.01)
    async with handling(models) as handler:
        scoring = asyncio.create_task(handler.score(MODEL, "a", ["b" * 400, "c" * 400]))
        await until(lambda: bool(models.runners[0].launched))
        scoring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await scoring
        assert await handler.admission.drain(60)


async def test_one_bad_suffix_fails_the_score_and_leaves_nothing_behind() -> None:
    async with handling(FakeModels()) as handler:
        with pytest.raises(InvalidRequest):
            await handler.score(MODEL, "a", ["b", ""])
        assert await handler.admission.drain(60)


async def test_defaults_and_tokens_of_a_model_that_is_not_here_are_refused() -> None:
    async with handling(FakeModels()) as handler:
        with pytest.raises(NotLoaded):
            handler.defaults("/sax/test/none")
        with pytest.raises(NotLoaded):
            await handler.tokenize("/sax/test/none", "x")


async def take(
    connection: TokenStream,
    out: dict[int, list[TokenChunk | SaxError]],
    enough: Callable[[], bool],
) -> None:
    """Add what the requests of a connection yield until it is enough."""
    while not enough():
        for id, chunk in await connection.take():
            out[id].append(chunk)


def limited(timeout_s: float, prompt: str = "hi", **sampling: object) -> GenerateRequest:
    return replace(question(prompt, **sampling), timeout_s=timeout_s)


async def test_a_time_limit_ends_a_request_in_the_queue_and_one_that_runs() -> None:
    gate = threading.Semaphore(0)
    models = FakeModels(limits=structs.replace(LIMITS, slots=1), gate=gate)
    async with handling(models) as handler:
        engine = handler._servables.get(MODEL)  # pyright: ignore[reportPrivateUsage]
        assert isinstance(engine, LmServable)
        connection = TokenStream(handler, GENERATE_STREAM)
        connection.start(1, limited(60, max_tokens=400))
        await until(lambda: engine.running == 1)
        connection.start(2, limited(30, max_tokens=400))
        await until(lambda: engine.waiting == 1)
        gate.release(3)
        out: dict[int, list[TokenChunk | SaxError]] = {1: [], 2: []}
        await take(connection, out, lambda: len(text(out[1])) == 3)
        skip(30)
        await take(connection, out, lambda: bool(out[2]))
        skip(30)
        await take(connection, out, lambda: isinstance(out[1][-1], SaxError))
        assert isinstance(late := out[2][0], DeadlineExceeded)
        assert re.search(r"30 s passed: after \d+\.\d s it was still in the queue", late.text)
        assert text(out[1]) == text_of(answer_to("hi", 3))
        assert isinstance(late := out[1][-1], DeadlineExceeded)
        assert "had 3 tokens" in late.text
        for _ in range(3):  # what is in flight
            gate.release()
        await until(lambda: engine.stats().pages_used == 0)
        assert engine.stats().slots_used == 0
        assert await handler.admission.drain(60)


async def test_a_time_limit_ends_a_prompt_that_is_still_being_read() -> None:
    tokenizer = HeldTokenizer()
    async with handling(TokenizerModels(tokenizer)) as handler:
        connection = TokenStream(handler, GENERATE_STREAM)
        connection.start(1, limited(0.1, "x" * 2500))
        out = await collect(connection)
        assert isinstance(late := out[1][0], DeadlineExceeded)
        assert (late.param, "still being read" in late.text) == ("timeout", True)
        tokenizer.go.set()
        assert await handler.admission.drain(60)


async def test_a_score_has_a_time_limit_too() -> None:
    gate = threading.Semaphore(0)
    async with handling(FakeModels(gate=gate)) as handler:
        scoring = asyncio.create_task(handler.score(MODEL, "a", ["b"], timeout_s=60))
        engine = handler._servables.get(MODEL)  # pyright: ignore[reportPrivateUsage]
        await until(lambda: engine.running == 1)
        skip(60)
        with pytest.raises(DeadlineExceeded, match="its prompt was still being computed"):
            await scoring
        assert await handler.admission.drain(60)
        gate.release(9)


async def test_the_last_chunk_has_the_experts_of_all_tokens_but_the_last() -> None:
    """Also where a stop string ends the answer, of which the engine does not know."""
    models = FakeModels(limits=structs.replace(LIMITS, routed_experts=True, prefix_cache="shared"))
    shown = ReplyOptions(return_routed_experts=True)
    answer = answer_to("hi" * 40, 5)
    async with handling(models) as handler:
        for stop, told in (((), 5), ((text_of(answer[2:3]),), 3)):
            connection = TokenStream(handler, GENERATE_STREAM)
            connection.start(1, replace(question("hi" * 40, stop=stop), reply=shown))
            *others, last = (await collect(connection))[1]
            assert not any(each.routed_experts for each in others if isinstance(each, TokenChunk))
            assert isinstance(last, TokenChunk)
            assert last.routed_experts is not None
            tokens = [*b"hi" * 40, *answer[: told - 1]]
            assert last.completion_tokens == told
            np.testing.assert_array_equal(last.routed_experts.ids, experts_of(tokens, 0))
        none = replace(question(max_tokens=0), reply=replace(shown, prompt_logprobs=1))
        with pytest.raises(InvalidRequest, match="return_routed_experts comes with the end"):
            handler.start(none, GENERATE_STREAM, lambda _: None)
    async with handling(FakeModels()) as handler:
        with pytest.raises(InvalidRequest, match="publish it with RETURN_ROUTED_EXPERTS"):
            handler.start(replace(question(), reply=shown), GENERATE_STREAM, lambda _: None)
