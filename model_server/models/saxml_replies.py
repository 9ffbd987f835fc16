"""SaxmlReplies: form of the answers of Saxml's LMService, and the methods that there are."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from sax.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class SaxmlReplies:
    begins_with_query: bool = False  # text and token ids of an answer
    best_first: bool = True  # False: samples as they were drawn
    mean_probability: bool = False  # a sample's score, instead of a log-probability
    scored_mean: bool = False  # likewise of Score
    scores_end: bool = False  # Score counts the end token after a suffix
    end_token: int | None = None  # for that; None: the tokenizer's
    withheld: tuple[str, ...] = ()  # methods that are not served

    def of_tokenizer(self, ends: Collection[int]) -> SaxmlReplies:
        """Fill in the end token. Raises InvalidRequest if Score needs one and it is not clear."""
        if not self.scores_end or self.end_token is not None:
            return self
        if len(ends) != 1:
            raise InvalidRequest(
                f"SCORING_INCLUDE_EOS_SCORE counts one end token, and the tokenizer has "
                f"{len(ends)}: say which with EOS_ID",
                param="overrides.EOS_ID",
            )
        return replace(self, end_token=next(iter(ends)))

    def served(self, methods: Iterable[str]) -> tuple[str, ...]:
        return tuple(method for method in methods if method not in self.withheld)

    def sampled(self, score: float, tokens: int) -> float:
        return _mean(score, tokens) if self.mean_probability else score

    def scored(self, score: float, tokens: int) -> float:
        return _mean(score, tokens) if self.scored_mean else score

    @property
    def ending(self) -> tuple[int, ...]:
        """Tokens that Score counts after a suffix."""
        return (self.end_token,) if self.scores_end and self.end_token is not None else ()


def _mean(score: float, tokens: int) -> float:
    """Return the geometric mean of the tokens' probabilities, of the sum of their logarithms."""
    return math.exp(score / max(1, tokens))


PLAIN_REPLIES = SaxmlReplies()
