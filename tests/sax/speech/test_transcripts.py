from __future__ import annotations

import pytest

from sax.speech.transcripts import Segment, TranscriptPart, whole_transcript


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
