"""Beam searches over real gRPC: LMService and TokenService, with arithmetic models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model_server.engine.types import BeamSettings, Hypothesis
from sax.errors import InvalidRequest
from sax.types import SamplingParams
from tests.model_server.engine.fake_runner import VOCAB, hash_of
from tests.model_server.engine.parts.beam_reference import search
from tests.model_server.fake_model import LIMITS, FakeModels, text_of
from tests.model_server.fake_server import Served, Stream, error_of, lm_request, serving
from tests.model_server.waiting import until

ENDS = (7, 60)
BEAMS = SamplingParams(
    beam_size=3, length_penalty=0.8, min_tokens=2, max_tokens=6, stop_token_ids=ENDS
)


def wanted(prompt: bytes = b"hi", tokens_per_beam: int = 0) -> list[Hypothesis]:
    beams = BeamSettings(3, 0.8, min_tokens=2, tokens_per_beam=tokens_per_beam)

    def logprobs(tokens: tuple[int, ...]) -> np.ndarray:
        return -((hash_of([*prompt, *tokens]) + np.arange(VOCAB)) % VOCAB) / VOCAB

    return search(logprobs, beams, frozenset(ENDS), 6)


async def all_free(served: Served) -> None:
    await until(lambda: served.servable().stats().slots_used == 0)


async def test_generate_gives_all_answers_of_a_class_that_searches() -> None:
    async with serving(FakeModels(defaults=BEAMS, samples=2)) as served:
        reply = await served.lm.Generate(lm_request())
        assert [each.text for each in reply.texts] == [text_of(a.tokens[:-1]) for a in wanted()]
        scores = [each.score for each in wanted()]
        assert [each.score for each in reply.texts] == pytest.approx(scores)
        await all_free(served)


async def test_generate_stream_gives_them_in_one_message() -> None:
    async with serving(FakeModels(defaults=BEAMS)) as served:
        replies = [reply async for reply in served.lm.GenerateStream(lm_request())]
        assert len(replies) == 1
        texts = [item.text for item in replies[0].items]
        assert texts == [text_of(each.tokens[:-1]) for each in wanted()]


async def test_a_call_can_ask_for_samples_or_for_beams() -> None:
    async with serving(FakeModels(defaults=BEAMS, samples=2)) as served:
        assert len((await served.lm.Generate(lm_request(beam_size=0))).texts) == 2
        assert len((await served.lm.Generate(lm_request(beam_size=1))).texts) == 1


async def test_a_call_can_say_how_many_tokens_each_hypothesis_offers() -> None:
    assert wanted(tokens_per_beam=1) != wanted()
    async with serving(FakeModels(defaults=BEAMS)) as served:
        for offers in (1, 2, 5):
            reply = await served.lm.Generate(lm_request(tokens_per_beam=offers))
            scores = [each.score for each in wanted(tokens_per_beam=offers)]
            assert [each.score for each in reply.texts] == pytest.approx(scores)


async def test_a_token_stream_has_one_chunk_with_every_answer() -> None:
    async with serving(FakeModels()) as served:
        stream = Stream(served)
        fields: dict[str, Any] = {"beam_size": 3, "length_penalty": 0.8, "min_tokens": 2}
        await stream.ask(1, "hi", max_tokens=6, stop_token_ids=ENDS, **fields)
        await stream.until_over(1)
        (chunk,) = stream.chunks[1]
        assert [each.token_ids for each in chunk.hypotheses] == [each.tokens for each in wanted()]
        best = wanted()[0]
        assert (chunk.token_ids, chunk.finish_reason) == (best.tokens, "stop")
        assert (chunk.text, chunk.stop_reason) == (text_of(best.tokens[:-1]), best.tokens[-1])
        assert {each.stop_token_id for each in chunk.hypotheses} <= {*ENDS}
        assert chunk.prompt_tokens == 2


async def test_what_contradicts_a_search_is_refused_by_name() -> None:
    cases: list[tuple[dict[str, float], str]] = [
        ({"temperature": 0.5}, "temperature"),
        ({"per_example_top_k": 3}, "top_k"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"beam_size": LIMITS.slots + 1}, "beam_size"),
        ({"min_tokens": 6}, "min_tokens"),
        ({"beam_size": 0, "length_penalty": 0.5}, "length_penalty"),
        ({"beam_size": 0, "tokens_per_beam": 2}, "tokens_per_beam"),
        ({"tokens_per_beam": 19}, "tokens_per_beam"),
    ]
    async with serving(FakeModels(defaults=BEAMS)) as served:
        for extra, param in cases:
            error = await error_of(served.lm.Generate(lm_request(**extra)))
            assert isinstance(error, InvalidRequest), extra
            assert error.param == param, extra


async def test_a_search_that_nothing_can_end_is_refused() -> None:
    async with serving(FakeModels(defaults=SamplingParams(beam_size=2))) as served:
        error = await error_of(served.lm.Generate(lm_request()))
        assert error.param == "stop_token_ids"


async def test_a_caller_that_leaves_frees_every_slot_of_its_search() -> None:
    async with serving(FakeModels(delay_s=0.01)) as served:
        stream = Stream(served)
        fields: dict[str, Any] = {"beam_size": 3, "min_tokens": 300}
        await stream.ask(1, "hi", max_tokens=400, stop_token_ids=ENDS, **fields)
        await until(lambda: served.servable().stats().slots_used == 3)
        await stream.cancel(1)
        await all_free(served)
        stream.call.cancel()
