"""The request for the rest of an answer, wherever its replica is lost."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sax.client.resumable_answer import ResumableAnswer
from sax.errors import ReplicaLost
from sax.types import (
    AnswerSoFar,
    GenerateRequest,
    Image,
    Message,
    SamplingParams,
    TokenChunk,
    TokenLogprob,
)

REQUEST = GenerateRequest(model_id="/sax/test/m", prompt="go", sampling=SamplingParams(top_k=3))


def answered(sizes: list[int], prompt_logprobs: int = 0) -> list[TokenChunk]:
    """Return an answer of tokens 0, 1, 2 ... in chunks of these sizes."""
    chunks: list[TokenChunk] = []
    total = 0
    for index, size in enumerate(sizes):
        ids = tuple(range(total, total + size))
        total += size
        chunk = TokenChunk(f"<{ids}>", ids, completion_tokens=total, score=-float(total))
        if not index:
            entry = TokenLogprob(1, "a", b"a", math.nan)
            chunk = TokenChunk(
                chunk.text,
                ids,
                completion_tokens=total,
                score=-float(total),
                prompt_logprobs=(entry,) * prompt_logprobs,
                seed=5,
                version="v",
            )
        chunks.append(chunk)
    return chunks


def test_before_the_first_chunk_the_rest_is_the_request_itself() -> None:
    assert ResumableAnswer(REQUEST).rest is REQUEST


def test_another_replica_gets_the_images_again() -> None:
    chat = (Message("user", ("What is it?", Image(b"file"))),)
    answer = ResumableAnswer(GenerateRequest(model_id="/sax/test/m", prompt=chat))
    answer.add(answered([2])[0], 0.0)
    assert answer.rest.prompt == chat
    assert answer.rest.answer is not None
    assert answer.rest.answer.token_ids == (0, 1)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 3), st.data())
def test_wherever_an_answer_breaks_and_how_often_the_rest_begins_where_it_ended(
    sizes: list[int], prompt_logprobs: int, data: st.DataObject
) -> None:
    chunks = answered(sizes, prompt_logprobs)
    answer = ResumableAnswer(REQUEST)
    for index, chunk in enumerate(chunks):
        answer.add(chunk, 0.0)
        if data.draw(st.booleans()):  # another client takes it from here
            answer = ResumableAnswer(answer.rest) if data.draw(st.booleans()) else answer
        had = sum(sizes[: index + 1])
        rest = answer.rest
        assert rest.answer == AnswerSoFar(
            token_ids=tuple(range(had)),
            score=-float(had),
            prompt_logprobs=prompt_logprobs,
            version="v",
        )
        assert rest.sampling == SamplingParams(top_k=3, seed=5)
        assert rest.prompt == "go"


def test_a_chunk_that_does_not_follow_is_refused_and_not_counted() -> None:
    answer = ResumableAnswer(REQUEST)
    first, *_ = answered([2])
    answer.add(first, 0.0)
    with pytest.raises(ReplicaLost, match="token 2 of the answer instead of token 4"):
        answer.add(first, 0.0)
    assert (answer.chunks, answer.tokens) == (1, 2)


def test_the_rest_names_the_span_of_the_part_before_it() -> None:
    answer = ResumableAnswer(REQUEST)
    first, second, third = answered([1, 1, 1])
    answer.add(replace(first, traceparent="00-1-2-01"), 0.0)
    answer.add(second, 0.0)
    again = ResumableAnswer(answer.rest)
    again.add(third, 0.0)
    for each in (answer, again):
        assert each.rest.answer is not None
        assert each.rest.answer.traceparent == "00-1-2-01"
