"""Replies as a Saxml class says, over real gRPC with an arithmetic model."""

from __future__ import annotations

import math

import pytest

from model_server.models.saxml_replies import SaxmlReplies
from sax.errors import InvalidRequest
from sax.proto import lm_pb2
from tests.model_server.engine.fake_runner import logprob
from tests.model_server.fake_model import FakeModels, answer_to, text_of
from tests.model_server.fake_server import MODEL, error_of, lm_request, serving
from tests.model_server.services.test_lm_service import Changed

BEGINS = SaxmlReplies(begins_with_query=True)


async def streamed(served, request) -> str:
    text = ""
    async for reply in served.lm.GenerateStream(request):
        text = text[: reply.items[0].prefix_len] + reply.items[0].text
    return text


@pytest.mark.parametrize("beams", [0, 2])
async def test_an_answer_begins_with_its_query(beams: int) -> None:
    request = lm_request(per_example_max_decode_steps=4)
    if beams:
        request.extra_inputs.items["beam_size"] = beams
        request.extra_inputs.tensors["stop_token_ids"].values[:] = [255]
    async with serving(FakeModels()) as served:
        plain = (await served.lm.Generate(request)).texts
    async with serving(Changed(replies=BEGINS)) as served:
        reply = await served.lm.Generate(request)
        assert [each.text for each in reply.texts] == [f"hi{each.text}" for each in plain]
        assert [each.score for each in reply.texts] == [each.score for each in plain]
        if not beams:
            assert await streamed(served, request) == f"hi{plain[0].text}"


async def test_an_answer_of_ids_begins_with_the_ids_of_its_query() -> None:
    ids = ",".join(map(str, [*b"hi", *answer_to("hi", 3)]))
    request = lm_request(per_example_max_decode_steps=3)
    async with serving(Changed(replies=BEGINS, tokenized_output=True)) as served:
        assert (await served.lm.Generate(request)).texts[0].text == ids
        assert await streamed(served, request) == ids


async def test_an_answer_of_text_begins_with_the_text_of_ids() -> None:
    request = lm_request("104,105", per_example_max_decode_steps=3)
    async with serving(Changed(replies=BEGINS, tokenized_input=True)) as served:
        answer = (await served.lm.Generate(request)).texts[0].text
        assert answer == f"hi{text_of(answer_to('hi', 3))}"


async def test_a_score_counts_the_end_token() -> None:
    request = lm_pb2.ScoreRequest(model_key=MODEL, prefix="ab", suffix=["c", ""])
    async with serving(Changed(replies=SaxmlReplies(scores_end=True, end_token=7))) as served:
        one, none = (await served.lm.Score(request)).logp
    letters = [*b"abc"]
    assert one == pytest.approx(logprob(letters[:2], letters[2]) + logprob(letters, 7))
    assert none == pytest.approx(logprob(letters[:2], 7))


async def test_scores_are_geometric_means_of_probabilities() -> None:
    means = SaxmlReplies(mean_probability=True, scored_mean=True)
    generate = lm_request(per_example_max_decode_steps=4)
    score = lm_pb2.ScoreRequest(model_key=MODEL, prefix="ab", suffix=["cd"])
    async with serving(FakeModels()) as served:
        sampled = (await served.lm.Generate(generate)).texts[0].score
        (scored,) = (await served.lm.Score(score)).logp
    async with serving(Changed(replies=means)) as served:
        assert (await served.lm.Generate(generate)).texts[0].score == pytest.approx(
            math.exp(sampled / 4)
        )
        assert (await served.lm.Score(score)).logp[0] == pytest.approx(math.exp(scored / 2))


async def test_samples_come_as_they_were_drawn() -> None:
    request = lm_request(per_example_max_decode_steps=4, temperature=1, seed=5)
    async with serving(Changed(samples=4)) as served:
        best = [(each.text, each.score) for each in (await served.lm.Generate(request)).texts]
    async with serving(Changed(samples=4, replies=SaxmlReplies(best_first=False))) as served:
        drawn = [(each.text, each.score) for each in (await served.lm.Generate(request)).texts]
    assert sorted(drawn, key=lambda each: -each[1]) == best != drawn


async def test_a_method_that_is_withheld_is_refused_by_name() -> None:
    only_scores = SaxmlReplies(withheld=("lm.generate", "lm.generate_stream"))
    methods = only_scores.served(("lm.generate", "lm.generate_stream", "lm.score"))
    async with serving(Changed(replies=only_scores, methods=methods)) as served:
        error = await error_of(served.lm.Generate(lm_request()))
        assert isinstance(error, InvalidRequest)
        assert "does not serve lm.generate; it serves lm.score" in error.text
        request = lm_pb2.ScoreRequest(model_key=MODEL, prefix="ab", suffix=["c"])
        assert len((await served.lm.Score(request)).logp) == 1


async def test_a_class_that_only_streams_does_so() -> None:
    """Saxml's LLaMA70BInt8TokenizedInputTPUv5e8Stream has ENABLE_GENERATE false."""
    streams = ("lm.generate_stream", "lm.score")
    request = lm_request(per_example_max_decode_steps=3)
    async with serving(Changed(replies=BEGINS, methods=streams)) as served:
        error = await error_of(served.lm.Generate(request))
        assert "does not serve lm.generate; it serves lm.generate_stream" in error.text
        assert await streamed(served, request) == f"hi{text_of(answer_to('hi', 3))}"
