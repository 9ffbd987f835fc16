from __future__ import annotations

import pytest

from model_server.loading.audio.loaded_audio import WrittenWindow
from model_server.serving.passes.sounds import (
    TEMPERATURES,
    Judged,
    compression_ratio,
    judged,
    temperatures_of,
)


def judge(text: str, logprob: float, no_speech: float = 0.0) -> Judged:
    return judged(WrittenWindow((1, 2, 3), logprob, no_speech, None), text, 0.0)


def test_a_likely_text_that_does_not_repeat_itself_is_good() -> None:
    found = judge("the cat sat on the mat", -2.0)
    assert (found.is_bad, found.is_silence, found.avg_logprob) == (False, False, -0.5)


def test_repetition_and_unlikely_text_are_tried_again() -> None:
    assert judge("again and again " * 20, -0.1).is_bad
    assert judge("xyz", -8.0).is_bad


def test_an_unlikely_text_where_nobody_speaks_is_silence_and_stands() -> None:
    found = judge("xyz", -8.0, no_speech=0.7)
    assert (found.is_bad, found.is_silence) == (False, True)
    assert not judge("hello", -1.0, no_speech=0.9).is_silence


def test_a_caller_that_names_a_temperature_gets_that_alone() -> None:
    assert temperatures_of(0.0) == TEMPERATURES
    assert temperatures_of(0.3) == (0.3,)


def test_nothing_compresses_to_nothing() -> None:
    assert compression_ratio("") == 0.0
    assert compression_ratio("a") == pytest.approx(1 / 9)
