"""Saxml's LMService over real gRPC, with arithmetic models."""

import threading

import grpc
import grpc.aio
import pytest

from sax.errors import (
    InvalidRequest,
    UnsupportedParameter,
)
from sax.proto import common_pb2, lm_pb2, modelet_pb2
from sax.types import SamplingParams
from tests.model_server.engine.fake_runner import logprob
from tests.model_server.fake_model import FakeModels, answer_to, text_of
from tests.model_server.fake_server import (
    MODEL,
    error_of,
    lm_request,
    serving,
    until,
)


async def test_generate_answers_as_saxml_does() -> None:
    async with serving(FakeModels()) as served:
        reply = await served.lm.Generate(lm_request(per_example_max_decode_steps=6))
        (answer,) = reply.texts
        tokens = answer_to("hi", 6)
        assert answer.text == text_of(tokens)
        seen = list(b"hi")
        expected = sum(logprob([*seen, *tokens[:end]], tokens[end]) for end in range(6))
        assert answer.score == pytest.approx(expected)


async def test_a_query_to_a_chat_model_is_a_users_turn() -> None:
    async with serving(FakeModels(chat_queries=True)) as served:
        reply = await served.lm.Generate(lm_request(per_example_max_decode_steps=6))
        tokens = answer_to("user: hi\nassistant: ", 6)
        assert reply.texts[0].text == text_of(tokens)


async def test_generate_gives_its_samples_best_first_and_a_seed_repeats_them() -> None:
    models = FakeModels(samples=3, defaults=SamplingParams(temperature=1.0, max_tokens=10))
    async with serving(models) as served:
        reply = await served.lm.Generate(lm_request(seed=5))
        scores = [answer.score for answer in reply.texts]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)
        assert len({answer.text for answer in reply.texts}) > 1
        assert await served.lm.Generate(lm_request(seed=5)) == reply


async def test_generate_stream_adds_up_piece_by_piece() -> None:
    gate = threading.Semaphore(0)
    defaults = SamplingParams(temperature=1.0, max_tokens=12)
    async with serving(FakeModels(gate=gate, samples=2, defaults=defaults)) as served:
        call = served.lm.GenerateStream(lm_request(seed=5))
        texts, scores, messages = ["", ""], [0.0, 0.0], 0
        gate.release(2)  # so little at a time that it cannot all be one message
        while (reply := await call.read()) is not grpc.aio.EOF:
            messages += 1
            gate.release(2)
            for index, item in enumerate(reply.items):
                texts[index] = texts[index][: item.prefix_len] + item.text
                scores[index] = item.scores[0]
        assert messages > 1
        gate.release(1000)
        whole = await served.lm.Generate(lm_request(seed=5))
        assert sorted(texts) == sorted(answer.text for answer in whole.texts)
        assert max(scores) == whole.texts[0].score


async def test_unknown_extra_inputs_are_refused_by_name() -> None:
    async with serving(FakeModels()) as served:
        error = await error_of(served.lm.Generate(lm_request(beam_size=4)))
        assert isinstance(error, UnsupportedParameter)
        assert error.param == "extra_inputs.beam_size"
        score = lm_pb2.ScoreRequest(
            model_key=MODEL,
            suffix=["x"],
            prefix="y",
            extra_inputs=common_pb2.ExtraInputs(items={"temperature": 1}),
        )
        assert isinstance(await error_of(served.lm.Score(score)), UnsupportedParameter)


async def test_score_sums_the_log_probabilities_of_each_suffix() -> None:
    async with serving(FakeModels()) as served:
        reply = await served.lm.Score(
            lm_pb2.ScoreRequest(model_key=MODEL, prefix="ab", suffix=["c", "de"])
        )
        first = logprob(list(b"ab"), ord("c"))
        second = logprob(list(b"ab"), ord("d")) + logprob(list(b"abd"), ord("e"))
        assert list(reply.logp) == pytest.approx([first, second])


@pytest.mark.parametrize(
    ("prefix", "suffixes", "param"),
    [("", ["x"], "prefix"), ("a", [""], "suffix"), ("a", [], "suffix")],
)
async def test_a_score_of_nothing_is_refused(prefix: str, suffixes: list[str], param: str) -> None:
    async with serving(FakeModels()) as served:
        request = lm_pb2.ScoreRequest(model_key=MODEL, prefix=prefix, suffix=suffixes)
        error = await error_of(served.lm.Score(request))
        assert isinstance(error, InvalidRequest)
        assert error.param == param


async def test_what_is_not_served_is_refused_by_name() -> None:
    async with serving(FakeModels()) as served:
        calls = [
            served.lm.Gradient(lm_pb2.GradientRequest(model_key=MODEL)),
            served.modelet.Export(modelet_pb2.ExportRequest(model_key=MODEL)),
            served.modelet.Save(modelet_pb2.SaveRequest(model_key=MODEL)),
        ]
        for call in calls:
            assert isinstance(await error_of(call), UnsupportedParameter)


async def test_a_caller_of_generate_that_goes_away_frees_its_slots() -> None:
    models = FakeModels(samples=2, delay_s=0.01, defaults=SamplingParams(max_tokens=500))
    async with serving(models) as served:
        call = served.lm.Generate(lm_request())
        servable = served.servable()
        await until(lambda: servable.stats().running == 2)
        call.cancel()
        await until(lambda: servable.stats().slots_used == 0)
        assert servable.cancelled == 2
