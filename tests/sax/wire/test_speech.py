from __future__ import annotations

from dataclasses import replace

import pytest

from sax.errors import InvalidRequest, SaxError, UnsupportedParameter
from sax.proto import speech_pb2
from sax.speech import (
    Segment,
    SpeechRequest,
    SpokenPart,
    TimedWord,
    TranscriptPart,
    TranscriptRequest,
    whole_sound,
)
from sax.wire.request_bounds import check_speak
from sax.wire.speech import (
    decode_part,
    decode_speak,
    decode_spoken,
    decode_transcribe,
    encode_part,
    encode_speak,
    encode_spoken,
    encode_transcribe,
)
from tests.each_case import each_case

REQUEST = SpeechRequest(model_id="/sax/test/voice", text="caf\u00e9")


def test_a_request_comes_back_as_it_was() -> None:
    other = replace(REQUEST, voice="nova", format="opus", speed=0.25, seed=0, whole=True)
    for request in (REQUEST, other):
        assert decode_speak(encode_speak(request)) == request
        check_speak(encode_speak(request))


def test_a_part_comes_back_as_it_was_and_parts_make_a_sound() -> None:
    parts = [SpokenPart(data=b"\0\xff", tokens=3, frames=5, duration=0.5), SpokenPart(data=b"x")]
    assert [decode_spoken(encode_spoken(each)) for each in parts] == parts
    whole = whole_sound(parts)
    assert (whole.data, whole.tokens, whole.frames, whole.duration) == (b"\0\xffx", 3, 5, 0.5)


@each_case(
    "changes, param, kind",
    [
        ({"text": ""}, "input", InvalidRequest),
        ({"text": " \n"}, "input", InvalidRequest),
        ({"text": "\U0001f600" * 4097}, "text", InvalidRequest),  # by its bytes
        ({"text": "a" * 4097}, "input", InvalidRequest),
        ({"voice": "x" * 600}, "voice", InvalidRequest),
        ({"speed": 0.2}, "speed", InvalidRequest),
        ({"speed": 4.5}, "speed", InvalidRequest),
        ({"speed": float("nan")}, "speed", InvalidRequest),
        ({"format": "aac"}, "response_format", UnsupportedParameter),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name(
    changes: dict[str, object], param: str, kind: type[SaxError]
) -> None:
    given = {"model_key": "/sax/test/voice", "text": "hi", "format": "wav", "speed": 1.0}
    with pytest.raises(kind) as caught:
        check_speak(speech_pb2.SpeakRequest(**given | changes))  # pyright: ignore[reportArgumentType]
    assert caught.value.param == param


def test_a_request_for_a_transcript_comes_back_as_it_was() -> None:
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
