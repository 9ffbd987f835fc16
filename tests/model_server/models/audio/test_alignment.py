"""Words and their times from what heads look at; a golden of real speech is in test_speech."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_server.models.audio.alignment import STEP_S, alignment_heads, times_of, words_of
from model_server.models.audio.whisper_config import WhisperConfig
from model_server.text.tokenizer import HfTokenizer
from sax.errors import CheckpointError
from tests.golden.sound_tokenizer import tokenizer_json

TOKENIZER = HfTokenizer(tokenizer_json(50))


@dataclass
class Sizes:
    layers: tuple[int, int] = (2, 4)
    heads: tuple[int, int] = (2, 3)


CONFIG = cast("WhisperConfig", Sizes())


def looking(at: list[int], heads: int = 2, control: int = 3) -> np.ndarray:
    """f32[A, T, S]: each token is looked for from its position to the next one's."""
    ends = [*at[1:], at[-1] + 12]
    made = np.full((heads, control + len(at), ends[-1]), 0.01, np.float32)
    for token, (begin, end) in enumerate(zip(at, ends, strict=True)):
        made[:, control + token - 1, begin:end] = 0.5
    return made


@settings(deadline=None)
@given(st.lists(st.integers(8, 30), min_size=1, max_size=6), st.integers(0, 5))
def test_a_token_begins_where_it_is_looked_for(lengths: list[int], control: int) -> None:
    at = [0, *np.cumsum(lengths).tolist()]  # of N tokens, and the end of the last
    looked = looking(at, control=control + 1)
    times = times_of(looked, len(lengths))
    assert times == pytest.approx(np.asarray(at) * STEP_S, abs=1e-9)


def test_sounds_shorter_than_the_smoothing_have_times_in_order() -> None:
    times = times_of(np.full((2, 6, 2), 0.5, np.float32), 3)
    assert len(times) == 4
    assert (np.diff(times) >= 0).all()


class Pieces:
    """A tokenizer whose tokens are these texts."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self.texts[token] for token in tokens)

    def words(self, language: str = "en") -> list[tuple[str, str]]:
        """Each word, and what its own tokens say."""
        found = words_of(range(len(self.texts)), cast("HfTokenizer", self), language)
        return [(word.text, self.decode(range(word.begin, word.end))) for word in found]


def test_words_begin_at_spaces_and_take_the_punctuation_at_them_along() -> None:
    said = Pieces(
        " He", " sa", "id", ":", ' "', "Go", " (", "now", ")", ",", " caf", "\u00e9", ".", '"'
    )
    assert said.words() == [
        (" He", " He"),
        (" said:", " said"),
        (' "Go', ' "Go'),
        (" (now),", " (now"),
        (' caf\u00e9."', " caf\u00e9"),
    ]


def test_without_spaces_each_character_is_a_word() -> None:
    said = Pieces("\u4f60", "\u597d", "\u3002", "\u5417")
    assert [text for text, _ in said.words("zh")] == ["\u4f60", "\u597d\u3002", "\u5417"]


@given(st.text(max_size=20))
def test_no_token_is_lost_or_in_two_words(text: str) -> None:
    for language in ("en", "ja"):
        tokens = TOKENIZER.encode(text, add_bos=False)
        words = words_of(tokens, TOKENIZER, language)
        assert "".join(word.text for word in words) == TOKENIZER.decode(tokens)
        ends = [0, *(end for word in words for end in (word.begin, word.end)), len(tokens)]
        assert ends == sorted(ends)


def test_heads_are_those_of_generation_config() -> None:
    assert alignment_heads({"alignment_heads": [[1, 0], [3, 2]]}, CONFIG) == ((1, 0), (3, 2))
    assert alignment_heads({}, CONFIG) == alignment_heads({"alignment_heads": None}, CONFIG) == ()
    wrong: list[Any] = [[[4, 0]], [[0, 3]], [[0]], [0, 1], 7, "ab", [[True, 0]]]
    for heads in wrong:
        with pytest.raises(CheckpointError, match="one of 4 layers and one of 3 heads"):
            alignment_heads({"alignment_heads": heads}, CONFIG)
