"""Answers that go on after what another replica gave of them, wherever it broke off."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from msgspec import structs

from model_server.serving.handler import GENERATE_STREAM, Handler
from sax.client.attempts import ResumableAnswer
from sax.errors import InvalidRequest, NotLoaded, SaxError
from sax.types import (
    AnswerSoFar,
    GenerateRequest,
    Message,
    ReplyOptions,
    SamplingParams,
    TokenChunk,
)
from tests.model_server.fake_model import FakeModels
from tests.model_server.serving.test_handler import MODEL, handling, question

PLAIN = question("hello", max_tokens=12)
PROMPT_SCORES = ReplyOptions(prompt_logprobs=2, echo=True, return_token_ids=True)
REQUESTS = {
    "plain": PLAIN,
    "log-probabilities": question("hello", max_tokens=12, logprobs=2),
    "an echo": replace(question("hello" * 9, max_tokens=6, logprobs=1), reply=PROMPT_SCORES),
    "only the prompt": replace(question("hello" * 9, max_tokens=0), reply=PROMPT_SCORES),
    "a chat": replace(PLAIN, prompt=(Message("user", "hello"),)),
    "control tokens": replace(PLAIN, reply=ReplyOptions(skip_special_tokens=False)),
    "a long minimum": question("hello", max_tokens=12, min_tokens=7),
}


async def chunks_of(handler: Handler, request: GenerateRequest) -> list[TokenChunk]:
    """Return the chunks of an answer, one per token. Raises its error."""
    chunks: list[TokenChunk] = []
    over = asyncio.get_running_loop().create_future()

    def sink(chunk: TokenChunk | SaxError) -> None:
        if isinstance(chunk, SaxError):
            over.set_exception(chunk)
            return
        chunks.append(chunk)
        if chunk.finish_reason is not None:
            over.set_result(None)

    handler.start(request, GENERATE_STREAM, sink)
    await over
    return chunks


def whole(chunks: list[TokenChunk]) -> TokenChunk:
    """Return an answer in one chunk, without the time that it waited."""
    joined = chunks[0]
    for chunk in chunks[1:]:
        joined = joined.joined(chunk)
    return structs.replace(joined, queue_s=0.0)


def stops_of(chunks: list[TokenChunk], rng: random.Random) -> list[str]:
    """Return a few texts that end the answer at one place or another, or nowhere."""
    text = whole(chunks).text
    start = rng.randrange(1, len(text))
    return [text[start : start + rng.randint(1, 5)], text[2:5] + "\0"]


async def same_from_everywhere(handler: Handler, request: GenerateRequest) -> None:
    """Break the answer off after each chunk; it must go on as if it had not been."""
    expected = await chunks_of(handler, request)
    for cut in range(1, len(expected)):
        answer = ResumableAnswer(request)
        for chunk in expected[:cut]:
            answer.add(chunk, 0.0)
        rest = await chunks_of(handler, answer.rest)
        assert whole([*expected[:cut], *rest]) == whole(expected), (request, cut)
        assert not rest[0].prompt_token_ids
        assert rest[0].seed is None


async def test_an_answer_goes_on_as_if_it_had_not_been_broken_off() -> None:
    async with handling(FakeModels()) as handler:
        for request in REQUESTS.values():
            await same_from_everywhere(handler, request)


async def test_a_text_that_ends_an_answer_may_begin_before_the_break_and_end_after_it() -> None:
    rng = random.Random(1)
    async with handling(FakeModels()) as handler:
        found = await chunks_of(handler, PLAIN)
        for _ in range(12):
            stops = tuple(stops_of(found, rng))
            sampling = replace(PLAIN.sampling, stop=stops)
            await same_from_everywhere(handler, replace(PLAIN, sampling=sampling))


async def test_tokens_that_end_an_answer_together_may_lie_on_both_sides_of_the_break() -> None:
    async with handling(FakeModels()) as handler:
        ids = whole(await chunks_of(handler, PLAIN)).token_ids
        sampling = replace(PLAIN.sampling, stop_sequence=ids[4:7])
        request = replace(PLAIN, sampling=sampling)
        assert whole(await chunks_of(handler, request)).token_ids == ids[:7]
        await same_from_everywhere(handler, request)


async def test_answers_that_go_on_are_counted() -> None:
    async with handling(FakeModels()) as handler:
        await chunks_of(handler, PLAIN)
        await chunks_of(handler, replace(PLAIN, answer=AnswerSoFar(token_ids=(21,))))
        servable = handler.start(PLAIN, GENERATE_STREAM, lambda chunk: None).servable
        assert servable.resumed == 1


async def test_an_answer_that_was_complete_ends_at_once() -> None:
    async with handling(FakeModels()) as handler:
        expected = whole(await chunks_of(handler, PLAIN))
        had = AnswerSoFar(token_ids=expected.token_ids, score=expected.score)
        (last,) = await chunks_of(handler, replace(PLAIN, answer=had))
        assert (last.text, last.token_ids, last.finish_reason) == ("", (), "length")
        assert last.completion_tokens == expected.completion_tokens


async def test_an_answer_longer_than_its_context_ends_at_once() -> None:
    async with handling(FakeModels()) as handler:
        had = AnswerSoFar(token_ids=(65,) * 5000)
        unlimited = replace(PLAIN, sampling=SamplingParams(temperature=0.0), answer=had)
        (last,) = await chunks_of(handler, unlimited)
        assert last.finish_reason == "length"


async def test_an_answer_that_no_replica_can_have_given_is_refused() -> None:
    async with handling(FakeModels()) as handler:
        for answer, said in (
            (AnswerSoFar(token_ids=(1, 99999)), "answer.token_ids is token 99999"),
            (AnswerSoFar(token_ids=(-1,)), "answer.token_ids is token -1"),
            (AnswerSoFar(prompt_logprobs=-1), "answer.prompt_logprobs is -1"),
        ):
            with pytest.raises(InvalidRequest, match=said):
                await chunks_of(handler, replace(PLAIN, answer=answer))


async def test_another_version_of_the_model_does_not_go_on() -> None:
    async with handling(FakeModels()) as handler:
        first = (await chunks_of(handler, PLAIN))[0]
        assert first.version == ""  # this one was loaded without an admin server
        had = AnswerSoFar(token_ids=first.token_ids, version="b" * 32)
        with pytest.raises(NotLoaded, match=f"{MODEL} is version unknown on this replica"):
            await chunks_of(handler, replace(PLAIN, answer=had))


async def test_a_beam_search_has_no_part_to_go_on_from() -> None:
    async with handling(FakeModels()) as handler:
        sampling = replace(PLAIN.sampling, beam_size=2)
        had = AnswerSoFar(token_ids=(65,))
        with pytest.raises(InvalidRequest, match="a beam search has no answer before its end"):
            await chunks_of(handler, replace(PLAIN, sampling=sampling, answer=had))
