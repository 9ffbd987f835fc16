"""Codec for speech: our SpeechService."""

from __future__ import annotations

from typing import cast

from sax.proto import speech_pb2
from sax.spoken import SoundFormat, SpeechRequest, SpokenPart


def encode_speak(request: SpeechRequest) -> speech_pb2.SpeakRequest:
    return speech_pb2.SpeakRequest(
        model_key=request.model_id,
        text=request.text,
        voice=request.voice,
        format=request.format,
        speed=request.speed,
        seed=request.seed,
        whole=request.whole,
    )


def decode_speak(msg: speech_pb2.SpeakRequest) -> SpeechRequest:
    """The message's bounds are checked before: sax.wire.request_bounds."""
    return SpeechRequest(
        model_id=msg.model_key,
        text=msg.text,
        voice=msg.voice,
        format=cast("SoundFormat", msg.format),
        speed=msg.speed,
        seed=msg.seed if msg.HasField("seed") else None,
        whole=msg.whole,
    )


def encode_spoken(part: SpokenPart) -> speech_pb2.SpeakResponse:
    return speech_pb2.SpeakResponse(
        data=part.data, tokens=part.tokens, frames=part.frames, duration=part.duration
    )


def decode_spoken(msg: speech_pb2.SpeakResponse) -> SpokenPart:
    return SpokenPart(data=msg.data, tokens=msg.tokens, frames=msg.frames, duration=msg.duration)
