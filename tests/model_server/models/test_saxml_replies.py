"""Form of Saxml's answers: its arithmetic, and the end token that Score counts."""

from __future__ import annotations

import math

import pytest

from model_server.models.saxml_replies import PLAIN_REPLIES, SaxmlReplies
from sax.errors import InvalidRequest


def test_a_mean_is_geometric_and_none_has_no_tokens() -> None:
    means = SaxmlReplies(mean_probability=True, scored_mean=True)
    assert means.sampled(math.log(0.25 * 0.01), 2) == pytest.approx(0.05)
    assert means.scored(0.0, 0) == 1.0
    assert PLAIN_REPLIES.sampled(-3.0, 2) == PLAIN_REPLIES.scored(-3.0, 2) == -3.0


def test_the_end_token_is_the_tokenizers_only_one_or_the_classs() -> None:
    assert PLAIN_REPLIES.of_tokenizer(()).ending == ()
    scores = SaxmlReplies(scores_end=True)
    assert scores.of_tokenizer({7}).ending == (7,)
    assert SaxmlReplies(scores_end=True, end_token=3).of_tokenizer({7, 8}).ending == (3,)
    for ends in ((), (7, 8)):
        with pytest.raises(InvalidRequest, match="say which with EOS_ID") as caught:
            scores.of_tokenizer(ends)
        assert caught.value.param == "overrides.EOS_ID"
