from __future__ import annotations

from sax.speech import Segment, TimedWord, TranscriptPart, TranscriptRequest
from sax.wire.transcripts import decode_part, decode_transcribe, encode_part, encode_transcribe


def test_a_request_comes_back_as_it_was() -> None:
    for request in (
        TranscriptRequest(model_id="/sax/test/ear", sound=b"\0\xff"),
        TranscriptRequest(
            model_id="/sax/test/ear",
            sound=b"x",
            language="de",
            translate=True,
            prompt="caf\u00e9",
            temperature=0.25,
            words=True,
        ),
    ):
        assert decode_transcribe(encode_transcribe(request)) == request


def test_a_part_comes_back_as_it_was() -> None:
    segment = Segment(
        start=0.5,
        end=1.25,
        text=" caf\u00e9",
        tokens=(1, 50364),
        seek=3000,
        temperature=0.2,
        avg_logprob=-0.5,
        compression_ratio=1.5,
        no_speech_prob=0.01,
        words=(TimedWord(start=0.5, end=0.75, text="caf\u00e9"),),
    )
    for part in (
        TranscriptPart(duration=2.0),
        TranscriptPart(segments=(segment, segment), language="fr", duration=2.0),
    ):
        assert decode_part(encode_part(part)) == part
