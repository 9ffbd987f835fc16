"""Values of passes, which read whole inputs and make no tokens: vectors, scores and classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sax.chat import PLAIN_CHAT as PLAIN_CHAT
from sax.chat import AnswerFormat as AnswerFormat
from sax.chat import ChatOptions as ChatOptions
from sax.chat import Image as Image
from sax.chat import Message as Message
from sax.chat import Sound as Sound
from sax.chat import Tool as Tool
from sax.chat import ToolCall as ToolCall
from sax.fields.sampling import MOST_PRIORITY as MOST_PRIORITY
from sax.fields.sampling import SamplingParams as SamplingParams


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors of one request's inputs, in order, and the inputs' total token count."""

    vectors: list[list[float]]
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class PairScores:
    """Scores of pairs of texts, in order, and the pairs' total token count."""

    scores: list[float]
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document among those that were ranked, by its place in the request."""

    index: int
    relevance_score: float


def ranked(scores: Sequence[float], top_n: int | None = None) -> list[Ranked]:
    """Return the best of documents with these scores, best first; on a tie the earlier first."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    return [Ranked(index, scores[index]) for index in order[:top_n]]


@dataclass(frozen=True, slots=True)
class Classified:
    """A score per label of each input, in order, and the inputs' total token count."""

    labels: tuple[str, ...]
    scores: list[list[float]]
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Gradients:
    """Log-probability of a suffix, and the loss's gradients by tensor, each flattened."""

    score: list[float]
    gradients: Mapping[str, list[float]]
