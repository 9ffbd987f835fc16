"""Values of passes, which read whole inputs and make no tokens: vectors, scores and classes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

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
class ChatInput:
    """An input of texts and images, for models that see.

    Models that read both together read it as their chat template writes it; those that compare the
    two take one message of one text or one image.
    """

    messages: tuple[Message, ...]

    @classmethod
    def of(cls, *parts: str | Image) -> ChatInput:
        """Return the input of one user who sends these texts and images, in this order."""
        return cls((Message("user", tuple(parts)),))


PairInput = str | Image | ChatInput  # a text, an image, or several of both
EmbedInput = PairInput | Sequence[int]  # or token ids


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors of one request's inputs, in order, and the inputs' total token count."""

    vectors: list[list[float]]
    prompt_tokens: int
    # Of a late-interaction model, in place of `vectors`: a vector for each token of each input
    tokens: list[list[list[float]]] = field(default_factory=list[list[list[float]]])


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
class TokenScores:
    """A score per label of one token, and where it is in its text."""

    scores: list[float]
    start: int = 0  # characters
    end: int = 0
    continues: bool = False  # the word of the token before
    special: bool = False  # not of the text: the start, the end


@dataclass(frozen=True, slots=True)
class Classified:
    """A score per label of each input, in order, and the inputs' total token count."""

    labels: tuple[str, ...]
    scores: list[list[float]]
    prompt_tokens: int
    # Of a classifier of tokens, in place of `scores`
    tokens: list[list[TokenScores]] = field(default_factory=list[list["TokenScores"]])


@dataclass(frozen=True, slots=True)
class Gradients:
    """Log-probability of a suffix, and the loss's gradients by tensor, each flattened."""

    score: list[float]
    gradients: Mapping[str, list[float]]


# none: each token; simple: runs of one label; the others decide by word first: by its first token,
# by the mean of its tokens' scores, or by its surest token
Aggregation = Literal["none", "simple", "first", "average", "max"]


@dataclass(frozen=True, slots=True)
class Entity:
    """A part of a text with a label."""

    label: str  # without B- and I-, unless it is of one token
    score: float
    word: str  # the text from start to end
    start: int  # characters
    end: int
    index: int | None = None  # place among the text's tokens, if it is of one


class _Labelled(NamedTuple):
    label: str
    score: float
    start: int
    end: int
    place: int | None = None


def entities_of(
    tokens: Sequence[TokenScores],
    text: str,
    labels: Sequence[str],
    aggregation: Aggregation = "simple",
    ignored: Collection[str] = ("O",),
) -> list[Entity]:
    """Group the labels of a text's tokens into entities, as transformers' pipeline
    "token-classification" does, and leave those with the ignored labels out.
    """
    places = [place for place, token in enumerate(tokens) if not token.special]
    if aggregation in ("none", "simple"):
        found = [_of_token(tokens[place], labels, place) for place in places]
    else:
        words = _words([tokens[place] for place in places])
        found = [_of_word(word, labels, aggregation) for word in words]
    if aggregation != "none":
        found = [_joined(run) for run in _runs(found)]
    return [
        Entity(each.label, each.score, text[each.start : each.end], *each[2:])
        for each in found
        if each.label not in ignored
    ]


def _of_token(token: TokenScores, labels: Sequence[str], place: int | None = None) -> _Labelled:
    best = max(range(len(labels)), key=token.scores.__getitem__)
    return _Labelled(labels[best], token.scores[best], token.start, token.end, place)


def _words(tokens: Sequence[TokenScores]) -> list[list[TokenScores]]:
    words: list[list[TokenScores]] = []
    for token in tokens:
        if words and token.continues:
            words[-1].append(token)
        else:
            words.append([token])
    return words


def _of_word(
    word: Sequence[TokenScores], labels: Sequence[str], aggregation: Aggregation
) -> _Labelled:
    """Return a word with the label that its tokens agree on."""
    if aggregation == "first":
        scores = word[0].scores
    elif aggregation == "max":
        scores = max(word, key=lambda token: max(token.scores)).scores
    else:
        columns = zip(*(token.scores for token in word), strict=True)
        scores = [sum(column) / len(word) for column in columns]
    return _of_token(TokenScores(scores, word[0].start, word[-1].end), labels)


def _runs(found: Sequence[_Labelled]) -> list[list[_Labelled]]:
    """Return runs of one label, B- begins a new one."""
    runs: list[list[_Labelled]] = []
    for each in found:
        begins, label = _parts(each.label)
        if runs and not begins and label == _parts(runs[-1][-1].label)[1]:
            runs[-1].append(each)
        else:
            runs.append([each])
    return runs


def _parts(label: str) -> tuple[bool, str]:
    """Return whether a label begins an entity, and its name."""
    return label.startswith("B-"), label[2:] if label[:2] in ("B-", "I-") else label


def _joined(run: Sequence[_Labelled]) -> _Labelled:
    name = run[0].label.split("-", 1)[-1]
    score = sum(each.score for each in run) / len(run)
    return _Labelled(name, score, run[0].start, run[-1].end)
