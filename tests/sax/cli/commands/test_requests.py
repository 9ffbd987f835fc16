"""An answer as JSON."""

from __future__ import annotations

from sax.cli.commands.requests import answer_value
from sax.types import HypothesisText, TokenChunk


def test_the_answers_of_a_beam_search_come_with_their_scores() -> None:
    found = (HypothesisText("yes", (1, 2), -0.5), HypothesisText("no", (3, 2), -0.75))
    told = answer_value([TokenChunk("yes", (1, 2), finish_reason="stop", hypotheses=found)])
    assert told["text"] == "yes"
    assert told["hypotheses"] == [
        {"text": "yes", "score": -0.5},
        {"text": "no", "score": -0.75},
    ]
    assert "hypotheses" not in answer_value([TokenChunk("yes", (1, 2), finish_reason="stop")])
