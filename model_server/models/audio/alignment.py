"""Times of words: where the decoder looks while it says each token.

Some of its heads follow the sound. Their attention, normalised over the tokens and smoothed over
time, is a matrix of tokens and moments; the cheapest way through it gives each token its time.
Source: Radford et al. 2022 (arXiv:2212.04356), as OpenAI's `whisper.timing` has it.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from model_server.models.audio.whisper_config import WhisperConfig
from model_server.text.tokenizer import HfTokenizer
from sax.errors import CheckpointError

STEP_S = 0.02  # between two positions of the encoder
_SMOOTHED = 7  # positions
# Languages that write no spaces between words.
_UNSPACED = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
_OPENING = frozenset("\"'“¿([{-")
_CLOSING = frozenset("\"'.。,，!！?？:：”)]}、")

Heads = tuple[tuple[int, int], ...]  # layer and head


class TokenWord(NamedTuple):
    """A word of a text, and which of its tokens are it, without the punctuation at it."""

    text: str
    begin: int
    end: int


def alignment_heads(said: Mapping[str, Any], config: WhisperConfig) -> Heads:
    """Return the heads of the decoder that follow the sound, by generation_config.json; (): it
    names none.

    Raises CheckpointError for heads that the decoder has not.
    """
    given = said.get("alignment_heads") or ()
    if not isinstance(given, Sequence) or not all(_is_head(each, config) for each in given):
        raise CheckpointError(
            f"generation_config.json has alignment_heads = {given!r:.200}; give pairs of one of "
            f"{config.layers[1]} layers and one of {config.heads[1]} heads"
        )
    return tuple((layer, head) for layer, head in given)


def _is_head(given: Any, config: WhisperConfig) -> bool:
    if not isinstance(given, Sequence) or len(given) != 2:
        return False
    return all(
        type(each) is int and 0 <= each < most
        for each, most in zip(given, (config.layers[1], config.heads[1]), strict=True)
    )


def times_of(looked: np.ndarray, count: int) -> np.ndarray:
    """f64[N + 1]: seconds at which each of N = count tokens begins, and at which the last one ends.

    looked: f32[A, T, S], what each head looks at for each token of control, the text and the end.
    """
    mean, spread = looked.mean(1, keepdims=True), looked.std(1, keepdims=True)
    even = (looked - mean) / np.where(spread > 0, spread, 1.0)
    # A token is chosen by what is looked at for the one before it.
    matrix = _smoothed(even).mean(0)[-count - 2 : -1]
    tokens, moments = _cheapest_way(-matrix)
    begins = np.diff(tokens, prepend=-1) > 0
    return moments[begins] * STEP_S


def _smoothed(numbers: np.ndarray) -> np.ndarray:
    """The median of the neighbours of each moment."""
    around = _SMOOTHED // 2
    if numbers.shape[-1] <= around:
        return numbers
    padded = np.pad(numbers, ((0, 0), (0, 0), (around, around)), mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, _SMOOTHED, axis=-1)
    return np.partition(windows, around, axis=-1)[..., around]


def _cheapest_way(costs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the cheapest way through f32[N, M], by steps to the next of either."""
    rows, columns = costs.shape
    total = np.full((rows + 1, columns + 1), np.inf, np.float32)
    came = np.zeros((rows + 1, columns + 1), np.int8)  # 0: from both, 1: from the row, 2: column
    total[0, 0] = 0
    came[0], came[:, 0] = 2, 1
    for diagonal in range(2, rows + columns + 1):  # all its cells at once
        i = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        j = diagonal - i
        both, row, column = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
        of_row = np.where((row < both) & (row < column), 1, 2)
        way = np.where((both < row) & (both < column), 0, of_row)
        total[i, j] = costs[i - 1, j - 1] + np.choose(way, (both, row, column))
        came[i, j] = way
    return _back(came)


def _back(came: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    i, j = came.shape[0] - 1, came.shape[1] - 1
    way: list[tuple[int, int]] = []
    while i > 0 or j > 0:
        way.append((i - 1, j - 1))
        step = came[i, j]
        i, j = i - (step != 2), j - (step != 1)
    rows, columns = np.array(way[::-1]).T
    return rows, columns


def words_of(tokens: Sequence[int], tokenizer: HfTokenizer, language: str) -> list[TokenWord]:
    """Divide tokens of text into words, each with the punctuation at it."""
    pieces = [*_characters(tokens, tokenizer)]
    if language not in _UNSPACED:
        pieces = _at_spaces(pieces)
    return _with_punctuation(pieces)


def _characters(tokens: Sequence[int], tokenizer: HfTokenizer) -> Iterator[TokenWord]:
    """Yield the fewest tokens that are whole characters, as long as there are such."""
    begin, before = 0, ""
    for end in range(1, len(tokens) + 1):
        text = tokenizer.decode(tokens[:end])
        if end < len(tokens) and text.endswith("\N{REPLACEMENT CHARACTER}"):
            continue
        yield TokenWord(text[len(before) :], begin, end)
        begin, before = end, text


def _at_spaces(pieces: Sequence[TokenWord]) -> list[TokenWord]:
    words: list[TokenWord] = []
    for piece in pieces:
        starts = piece.text.startswith(" ") or piece.text.strip() in string.punctuation
        if starts or not words:
            words.append(piece)
        else:
            word = words[-1]
            words[-1] = TokenWord(word.text + piece.text, word.begin, piece.end)
    return words


def _with_punctuation(words: Sequence[TokenWord]) -> list[TokenWord]:
    made: list[TokenWord] = []
    for word in words:
        before = made[-1] if made else TokenWord(" ", 0, 0)
        if word.text in _CLOSING and not before.text.endswith(" "):
            made[-1] = before._replace(text=before.text + word.text)
        elif before.text.startswith(" ") and before.text.strip() in _OPENING:
            made[-1] = word._replace(text=before.text + word.text)
        else:
            made.append(word)
    return made
