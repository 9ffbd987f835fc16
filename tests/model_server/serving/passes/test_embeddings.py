"""Embeddings over real gRPC, with an arithmetic model: the vector of [1, 2] is [3, 2]."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from model_server.serving.batch_servable import BatchServable
from sax.chat import Image
from sax.errors import InvalidRequest, PromptTooLong, QueueFull, UnsupportedParameter
from sax.passes import Embedded
from sax.proto import common_pb2, lm_pb2, modelet_pb2, tokens_pb2
from sax.types import EmbedInput
from sax.weights import WeightAction, WeightChange
from sax.wire.embed import (
    decode_classified,
    decode_embedded,
    decode_pair_scores,
    encode_classify,
    encode_embed,
    encode_pairs,
)
from tests.model_server.fake_batched import CONTEXT, MEMORY
from tests.model_server.fake_model import FakeModels
from tests.model_server.fake_server import MODEL, Served, Stream, error_of, lm_request, serving
from tests.model_server.waiting import until

EMBEDDER = "/sax/test/embedder"


async def embed(served: Served, *inputs: EmbedInput, model: str = EMBEDDER) -> Embedded:
    return decode_embedded(await served.tokens.Embed(encode_embed(model, inputs)))


def servable(served: Served) -> BatchServable[Any]:
    found = served.server.servables.get(EMBEDDER)
    assert isinstance(found, BatchServable)
    return found


async def test_texts_and_token_ids_become_vectors_in_order_and_are_counted() -> None:
    async with serving(FakeModels()) as served:
        await served.load(EMBEDDER, "fake.Embedder")
        made = await embed(served, "a", (1, 2), "b" * 50, (7,))
        assert made.vectors == [[97.0, 1.0], [3.0, 2.0], [98.0 * 50, 50.0], [7.0, 1.0]]
        assert made.prompt_tokens == 54


async def test_saxmls_embed_gives_the_vector_of_one_text() -> None:
    async with serving(FakeModels()) as served:
        await served.load(EMBEDDER, "fake.Embedder")
        reply = await served.lm.Embed(lm_pb2.EmbedRequest(model_key=EMBEDDER, text="ab"))
        assert list(reply.embedding) == [195.0, 2.0]
        extra = common_pb2.ExtraInputs(items={"temperature": 1.0})
        request = lm_pb2.EmbedRequest(model_key=EMBEDDER, text="ab", extra_inputs=extra)
        error = await error_of(served.lm.Embed(request))
        assert isinstance(error, UnsupportedParameter)
        assert "Embed takes no extra inputs; leave out temperature" in str(error)


async def test_concurrent_requests_share_batches_by_length() -> None:
    models = FakeModels()
    async with serving(models) as served:
        await served.load(EMBEDDER, "fake.Embedder")
        models.batches.clear()
        first = asyncio.create_task(embed(served, "x"))
        await until(lambda: servable(served).running == 1)
        rest = [asyncio.create_task(embed(served, "y" * n)) for n in (2, 40, 3, 50)]
        await until(lambda: servable(served).waiting == 4)
        models.batches.set()
        await asyncio.gather(first, *rest)
        assert models.runners[-1].batches == [1, 2, 2]
        assert list(servable(served).recent_batch_sizes) == [1, 2, 2]


async def test_many_inputs_of_one_request_pass_through_a_short_queue() -> None:
    async with serving(FakeModels()) as served:
        await served.load(EMBEDDER, "fake.Embedder")
        made = await embed(served, *((n, 1) for n in range(200)))
        assert made.vectors == [[n + 1.0, 2.0] for n in range(200)]


async def test_a_full_queue_refuses_other_callers() -> None:
    models = FakeModels()
    async with serving(models) as served:
        await served.load(EMBEDDER, "fake.Embedder")
        models.batches.clear()
        running = asyncio.create_task(embed(served, "x"))
        await until(lambda: servable(served).running == 1)
        bulk = asyncio.create_task(embed(served, *["y"] * 30))
        await until(lambda: servable(served).waiting == 8)
        assert isinstance(await error_of(embed(served, "z")), QueueFull)
        models.batches.set()
        assert (await running).vectors == [[120.0, 1.0]]
        assert len((await bulk).vectors) == 30


async def test_an_input_that_cannot_be_read_is_named() -> None:
    cases: list[tuple[tuple[EmbedInput, ...], type[Exception], str]] = [
        ((), InvalidRequest, "input is empty: send at least one text"),
        (("",), InvalidRequest, "input is empty: send text or token ids"),
        (("a", ()), InvalidRequest, "input 1 is empty"),
        (("a", (1, 256)), InvalidRequest, "input 1 is token 256: give ids from 0 to 255"),
        (
            ("a" * (CONTEXT + 1),),
            PromptTooLong,
            "input has 101 tokens and this model's maximum context length is 100",
        ),
        (("a", "b" * 5000), PromptTooLong, "input 1 has 5000 tokens"),
        (("a", Image(b"png")), UnsupportedParameter, "this model reads texts alone"),
    ]
    async with serving(FakeModels()) as served:
        await served.load(EMBEDDER, "fake.Embedder")
        for inputs, kind, says in cases:
            error = await error_of(embed(served, *inputs))
            assert type(error) is kind, says
            assert says in str(error)


async def test_each_kind_of_model_refuses_what_it_does_not_serve_in_words() -> None:
    async with serving(FakeModels()) as served:
        await served.load(EMBEDDER, "fake.Embedder")
        error = await error_of(embed(served, "x", model=MODEL))
        assert "is a language model and does not serve lm.embed; it serves lm.gen" in str(error)
        request = lm_request()
        request.model_key = EMBEDDER
        for call in (served.lm.Generate, served.lm.GenerateStream):
            stream = call(request)
            error = await error_of(stream if call is served.lm.Generate else stream.read())
            assert isinstance(error, InvalidRequest)
            assert "is an embedding model and does not serve lm.generate" in str(error)
        score = lm_pb2.ScoreRequest(model_key=EMBEDDER, prefix="a", suffix=["b"])
        assert "does not serve lm.score" in str(await error_of(served.lm.Score(score)))
        tokenize = tokens_pb2.TokenizeRequest(model_key=EMBEDDER, text="a")
        assert "embedding model" in str(await error_of(served.tokens.Tokenize(tokenize)))
        stream = Stream(served)
        await stream.ask(1, model=EMBEDDER)
        await stream.until_over(1)
        assert "is an embedding model" in str(stream.failures[1])


async def test_status_and_metrics_count_embeddings() -> None:
    async with serving(FakeModels(), metrics_port=0) as served:
        await served.load(EMBEDDER, "fake.Embedder")
        await embed(served, "abc", "de")
        await error_of(embed(served, ""))
        request = modelet_pb2.GetStatusRequest(include_method_stats=True)
        status = await served.modelet.GetStatus(request)
        found = next(m for m in status.models if m.model_key == EMBEDDER).method_stats
        assert [each.method for each in found] == ["lm.embed", "lm.rerank"]
        stats = found[0]
        assert stats.successes_per_second == pytest.approx(1 / 60)
        assert stats.errors_per_second == pytest.approx(1 / 60)
        assert list(stats.recent_batch_sizes) == [2]
        assert stats.pending_reqs == 0
        assert await served.metric("sax_batches_total", EMBEDDER) == 1
        assert await served.metric("sax_prompt_tokens_total", EMBEDDER) == 5
        assert await served.metric("sax_memory_bytes", EMBEDDER) == MEMORY
        with pytest.raises(RuntimeError, match="StopIteration"):  # an embedder has no slots
            await served.metric("sax_slots", EMBEDDER)


async def test_a_caller_that_goes_away_leaves_the_queue() -> None:
    models = FakeModels()
    async with serving(models, metrics_port=0) as served:
        await served.load(EMBEDDER, "fake.Embedder")
        models.batches.clear()
        running = asyncio.create_task(embed(served, "x"))
        await until(lambda: servable(served).running == 1)
        gone = served.tokens.Embed(encode_embed(EMBEDDER, ["y"] * 30))
        await until(lambda: servable(served).waiting == 8)
        gone.cancel()
        await until(lambda: servable(served).waiting == 0)
        models.batches.set()
        await running
        assert await served.metric("sax_requests_cancelled_total", EMBEDDER) == 1


async def test_a_vector_is_cut_and_made_as_long_as_before() -> None:
    async with serving(FakeModels()) as served:
        await served.load(EMBEDDER, "fake.Embedder")
        whole = await served.tokens.Embed(encode_embed(EMBEDDER, ["a"], 2))
        assert decode_embedded(whole).vectors == [[97.0, 1.0]]
        short = await served.tokens.Embed(encode_embed(EMBEDDER, ["a"], 1))
        assert decode_embedded(short).vectors == [[1.0]]
        refused = await error_of(served.tokens.Embed(encode_embed(EMBEDDER, ["a"], 3)))
        assert isinstance(refused, UnsupportedParameter)
        assert "dimensions is 3, but this model's vectors have 2: send one of 1, 2" in str(refused)
        negative = await error_of(served.tokens.Embed(encode_embed(EMBEDDER, ["a"], -1)))
        assert isinstance(negative, InvalidRequest)
        assert negative.param == "dimensions"


async def test_a_prompt_goes_before_the_text() -> None:
    async with serving(FakeModels()) as served:
        await served.load(EMBEDDER, "fake.Embedder")
        reply = await served.tokens.Embed(encode_embed(EMBEDDER, ["a"], prompt_name="query"))
        assert decode_embedded(reply).prompt_tokens == len("querya")
        refused = await error_of(served.tokens.Embed(encode_embed(EMBEDDER, ["a"], 0, "odd")))
        assert isinstance(refused, UnsupportedParameter)
        assert refused.param == "prompt_name"


async def test_a_cross_encoder_scores_each_pair_of_texts() -> None:
    async with serving(FakeModels()) as served:
        await served.load(EMBEDDER, "fake.CrossEncoder")
        pairs = encode_pairs(EMBEDDER, ["a"], ["b", "cd"])
        found = decode_pair_scores(await served.tokens.ScorePairs(pairs))
        assert found.scores == [97.0 + 98.0, 97.0 + 99.0 + 100.0]
        assert found.prompt_tokens == 3 + 4
        each = encode_pairs(EMBEDDER, ["a", "b"], ["b", "c"])
        assert decode_pair_scores(await served.tokens.ScorePairs(each)).scores == [195.0, 197.0]


async def test_an_embedding_model_scores_pairs_by_their_cosine() -> None:
    async with serving(FakeModels()) as served:
        await served.load(EMBEDDER, "fake.Embedder")
        pairs = encode_pairs(EMBEDDER, ["a"], ["a", "bb"])
        same, other = decode_pair_scores(await served.tokens.ScorePairs(pairs)).scores
        assert same == pytest.approx(1.0)
        assert other == pytest.approx((97 * 196 + 2) / (97.00515 * 196.0102), abs=1e-5)


async def test_a_classifier_gives_every_label_a_score() -> None:
    async with serving(FakeModels()) as served:
        await served.load(EMBEDDER, "fake.Classifier")
        reply = await served.tokens.Classify(encode_classify(EMBEDDER, ["a", (1, 2)]))
        found = decode_classified(reply)
        assert found.labels == ("low", "high")
        assert found.scores == [[97.0, 1.0], [3.0, 2.0]]
        error = await error_of(served.tokens.ScorePairs(encode_pairs(EMBEDDER, ["a"], ["b"])))
        assert "is a classification model and does not serve lm.rerank; it serves" in str(error)


async def test_pairs_that_cannot_be_scored_are_refused_by_name() -> None:
    cases: list[tuple[list[str], list[str], str, str]] = [
        ([], ["a"], "first", "first is empty"),
        (["a"], [], "second", "second is empty"),
        (["a", "b"], ["c"], "first", "send one first text"),
        (["a"], [""], "second", "is empty"),
        (["a"], ["b" * 200], "second", "maximum context length is 100 tokens"),
    ]
    async with serving(FakeModels()) as served:
        await served.load(EMBEDDER, "fake.CrossEncoder")
        for first, second, param, says in cases:
            pairs = encode_pairs(EMBEDDER, first, second)
            error = await error_of(served.tokens.ScorePairs(pairs))
            assert isinstance(error, InvalidRequest), says
            assert error.param == param, says
            assert says in str(error)


async def test_its_weights_do_not_change_in_place() -> None:
    async with serving(FakeModels()) as served:
        await served.load(EMBEDDER, "fake.Embedder")
        asked = WeightChange(model_id=EMBEDDER, action=WeightAction.UPDATE, source="/new")
        with pytest.raises(InvalidRequest, match="is an embedding model, whose weights do not"):
            await served.server.servables.change_weights(asked)
