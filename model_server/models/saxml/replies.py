"""Saxml's overrides of methods and replies, read into what a recipe says of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.saxml_replies import SaxmlReplies
from sax.errors import InvalidRequest

_GENERATES, _SCORES = ("lm.generate", "lm.generate_stream"), ("lm.score",)


def replies(given: Mapping[str, Any]) -> SaxmlReplies:
    silent = given["SCORE_ONLY"] or not given["ENABLE_GENERATE"]
    return SaxmlReplies(
        begins_with_query=given["INCLUDE_PREFIX_IN_RESULT"],
        best_first=given["SORT_SAMPLES"],
        mean_probability=given["GENERATION_USE_GEOMEAN_PROB_SCORE"],
        scored_mean=given["SCORING_USE_GEOMEAN_PROB_SCORE"],
        scores_end=given["SCORING_INCLUDE_EOS_SCORE"],
        end_token=_only_end(given),
        withheld=(*(_GENERATES if silent else ()), *(_SCORES if given["GENERATE_ONLY"] else ())),
    )


def check_replies(given: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for overrides that contradict each other."""
    silent = [key for key in ("SCORE_ONLY",) if given[key]]
    silent += [] if given["ENABLE_GENERATE"] else ["ENABLE_GENERATE"]
    if silent and given["GENERATE_ONLY"]:
        raise InvalidRequest(
            f"GENERATE_ONLY is true, and {silent[0]} leaves nothing to generate: leave one of the "
            "two out",
            param=f"overrides.{silent[0]}",
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
