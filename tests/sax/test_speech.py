from __future__ import annotations

import pytest

from sax.speech import NAMES, Segment, TranscriptPart, code_of, name_of, whole_transcript


def segment(text: str, tokens: int, logprob: float) -> Segment:
    return Segment(start=0.0, end=1.0, text=text, tokens=(1,) * tokens, avg_logprob=logprob)


def test_parts_make_a_whole_with_the_score_of_a_token() -> None:
    parts = [
        TranscriptPart(duration=3.5),
        TranscriptPart(segments=(segment(" Hello", 3, -0.1),), language="en", duration=3.5),
        TranscriptPart(segments=(segment(" there.", 1, -0.5),), language="en"),
    ]
    whole = whole_transcript(parts)
    assert (whole.text, whole.language, whole.duration) == ("Hello there.", "en", 3.5)
    assert whole.score == pytest.approx(-0.2)


def test_silence_is_a_whole_without_words() -> None:
    whole = whole_transcript([TranscriptPart(duration=1.0)])
    assert (whole.text, whole.score, whole.segments) == ("", 0.0, ())


def test_a_language_is_told_by_code_or_by_name() -> None:
    assert code_of("de") == code_of(" German ") == "de"
    assert code_of("Haitian Creole") == "ht"
    assert code_of("klingon") == "klingon"
    assert (name_of("fr"), name_of("tlh")) == ("french", "tlh")


def test_there_are_whispers_hundred_languages() -> None:
    assert len(NAMES) == 100
    assert len(set(NAMES.values())) == 100
    assert all(code.islower() and name.islower() for code, name in NAMES.items())
