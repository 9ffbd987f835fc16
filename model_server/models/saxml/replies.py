"""Saxml's overrides of methods and replies, read into what a recipe says of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from model_server.models.saxml_replies import SaxmlReplies
from sax.errors import InvalidRequest


def replies(given: Mapping[str, Any]) -> SaxmlReplies:
    return SaxmlReplies(
        begins_with_query=given["INCLUDE_PREFIX_IN_RESULT"],
        best_first=given["SORT_SAMPLES"],
        mean_probability=given["GENERATION_USE_GEOMEAN_PROB_SCORE"],
        scored_mean=given["SCORING_USE_GEOMEAN_PROB_SCORE"],
        scores_end=given["SCORING_INCLUDE_EOS_SCORE"],
        end_token=_only_end(given),
        withheld=tuple(_withheld(given)),
    )


def _withheld(given: Mapping[str, Any]) -> Iterator[str]:
    if given["SCORE_ONLY"] or not given["ENABLE_GENERATE"]:
        yield "lm.generate"
    if given["SCORE_ONLY"]:
        yield "lm.generate_stream"
    if given["GENERATE_ONLY"]:
        yield "lm.score"


def check_replies(given: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for overrides that contradict each other."""
    if given["SCORE_ONLY"] and given["GENERATE_ONLY"]:
        raise InvalidRequest(
            "SCORE_ONLY and GENERATE_ONLY leave no method: leave one of the two out",
            param="overrides.SCORE_ONLY",
        )
    if given["GENERATION_USE_GEOMEAN_PROB_SCORE"] and given["USE_BEAM_SEARCH"]:
        raise InvalidRequest(
            "GENERATION_USE_GEOMEAN_PROB_SCORE is of samples, and USE_BEAM_SEARCH answers with a "
            "search, whose scores LENGTH_NORM_ALPHA divides: leave one of the two out",
            param="overrides.GENERATION_USE_GEOMEAN_PROB_SCORE",
        )


def _only_end(given: Mapping[str, Any]) -> int | None:
    """Return the class's own end token, EOS_ID; None: the tokenizer's."""
    end = given["EOS_ID"]
    return end[0] if isinstance(end, list) else end
