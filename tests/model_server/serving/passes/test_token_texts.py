"""Vectors and labels of tokens over real gRPC, with an arithmetic model.

The vector of a token is [id, 1], or [id, 0] if it fills a query up; ids are ASCII.
"""

from __future__ import annotations

import pytest

from model_server.serving.passes import token_texts
from sax.errors import InvalidRequest, PromptTooLong, UnsupportedParameter
from sax.passes import TokenScores
from sax.types import EmbedInput
from sax.wire.embed import (
    decode_classified,
    decode_embedded,
    decode_pair_scores,
    encode_classify,
    encode_embed,
    encode_pairs,
)
from tests.model_server.fake_model import FakeModels
from tests.model_server.fake_server import Served, error_of, serving

LATE = "/sax/test/late"


async def vectors(served: Served, *inputs: EmbedInput, prompt: str = "") -> list[list[list[float]]]:
    asked = encode_embed(LATE, inputs, prompt_name=prompt, takes_tokens=True)
    return decode_embedded(await served.tokens.Embed(asked)).tokens


async def test_a_document_has_a_vector_for_each_token_but_punctuation() -> None:
    async with serving(FakeModels()) as served:
        await served.load(LATE, "fake.Late")
        document, ids = await vectors(served, "c.d", (9, 46))
        assert document == [[99, 1], [68, 1], [100, 1]]  # c, the role's token, d
        assert ids == [[9, 1], [46, 1]]  # as they are
        [query] = await vectors(served, "ab", prompt="query")
        assert query == [[97, 1], [81, 1], [98, 1], [95, 0]]  # filled up
        [long] = await vectors(served, "abcd", prompt="query")
        assert len(long) == 5


async def test_a_pair_scores_the_sum_of_each_query_tokens_largest_product() -> None:
    async with serving(FakeModels()) as served:
        await served.load(LATE, "fake.Late")
        pairs = encode_pairs(LATE, ["ab"], ["c.d", "D"])
        found = decode_pair_scores(await served.tokens.ScorePairs(pairs))
        assert found.scores == [(97 + 81 + 98 + 95) * 100 + 3, (97 + 81 + 98 + 95) * 68 + 3]
        assert found.prompt_tokens == 4 + 4 + 2
        each = encode_pairs(LATE, ["ab", "b"], ["d", "d"])
        scores = decode_pair_scores(await served.tokens.ScorePairs(each)).scores
        assert scores == [(97 + 81 + 98 + 95) * 100 + 3, (98 + 81 + 95 + 95) * 100 + 2]


async def test_a_classifier_places_each_token() -> None:
    async with serving(FakeModels()) as served:
        await served.load(LATE, "fake.Tagger")
        asked = encode_classify(LATE, ["a b", (7,)], takes_tokens=True)
        found = decode_classified(await served.tokens.Classify(asked))
        assert found.labels == ("O", "X")
        text, ids = found.tokens
        assert text == [
            TokenScores([97, 1], 0, 1),
            TokenScores([32, 1], 1, 2),
            TokenScores([98, 1], 2, 3),
        ]
        assert ids == [TokenScores([7, 1])]


async def test_what_cannot_be_read_or_answered_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_texts, "_MOST_VALUES", 100)
    cases: tuple[tuple[tuple[EmbedInput, ...], str, type[Exception], str], ...] = (
        (("",), "", InvalidRequest, "input is empty"),
        (("a", (1, 999)), "", InvalidRequest, "input 1 is token 999: give ids"),
        (("a" * 100,), "", PromptTooLong, "input has 101 tokens"),
        (("a" * 60,), "", InvalidRequest, "the answer would have 122 numbers, 2 for each"),
        (("a",), "odd", UnsupportedParameter, "has query and document"),
    )
    async with serving(FakeModels()) as served:
        await served.load(LATE, "fake.Late")
        plain = await error_of(served.tokens.Embed(encode_embed(LATE, ["a"])))
        assert isinstance(plain, InvalidRequest)
        assert "has a vector per token, and this call answers by input: use POST /poo" in str(plain)
        for inputs, prompt, kind, says in cases:
            error = await error_of(vectors(served, *inputs, prompt=prompt))
            assert type(error) is kind, says
            assert says in str(error)
        pair = await error_of(served.tokens.ScorePairs(encode_pairs(LATE, ["a"], ["b" * 200])))
        assert isinstance(pair, PromptTooLong)
        assert pair.param == "second"
        wrong = await error_of(served.tokens.Classify(encode_classify(LATE, ["a"])))
        assert "is a late-interaction model and does not serve lm.classify" in str(wrong)
