"""Codec for speech and transcripts: our own services, and Saxml's AudioService."""

from __future__ import annotations

from typing import cast

from sax.proto import speech_pb2, transcripts_pb2
from sax.speech import (
    Segment,
    SoundFormat,
    SpeechRequest,
    SpokenPart,
    TimedWord,
    TranscriptPart,
    TranscriptRequest,
)


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


def encode_transcribe(request: TranscriptRequest) -> transcripts_pb2.TranscribeRequest:
    return transcripts_pb2.TranscribeRequest(
        model_key=request.model_id,
        sound=request.sound,
        language=request.language,
        translate=request.translate,
        prompt=request.prompt,
        temperature=request.temperature,
        words=request.words,
    )


def decode_transcribe(msg: transcripts_pb2.TranscribeRequest) -> TranscriptRequest:
    return TranscriptRequest(
        model_id=msg.model_key,
        sound=msg.sound,
        language=msg.language,
        translate=msg.translate,
        prompt=msg.prompt,
        temperature=msg.temperature,
        words=msg.words,
    )


def encode_part(part: TranscriptPart) -> transcripts_pb2.TranscribeResponse:
    return transcripts_pb2.TranscribeResponse(
        segments=[_segment(each) for each in part.segments],
        language=part.language,
        duration=part.duration,
    )


def decode_part(msg: transcripts_pb2.TranscribeResponse) -> TranscriptPart:
    segments = tuple(
        Segment(
            start=each.start,
            end=each.end,
            text=each.text,
            tokens=tuple(each.tokens),
            seek=each.seek,
            temperature=each.temperature,
            avg_logprob=each.avg_logprob,
            compression_ratio=each.compression_ratio,
            no_speech_prob=each.no_speech_prob,
            words=tuple(TimedWord(start=w.start, end=w.end, text=w.text) for w in each.words),
        )
        for each in msg.segments
    )
    return TranscriptPart(segments=segments, language=msg.language, duration=msg.duration)


def _segment(segment: Segment) -> transcripts_pb2.Segment:
    return transcripts_pb2.Segment(
        start=segment.start,
        end=segment.end,
        text=segment.text,
        tokens=segment.tokens,
        seek=segment.seek,
        temperature=segment.temperature,
        avg_logprob=segment.avg_logprob,
        compression_ratio=segment.compression_ratio,
        no_speech_prob=segment.no_speech_prob,
        words=[
            transcripts_pb2.TimedWord(start=each.start, end=each.end, text=each.text)
            for each in segment.words
        ],
    )
