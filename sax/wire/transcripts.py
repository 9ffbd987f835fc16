"""Codec for transcripts: our TranscriptService and Saxml's AudioService."""

from __future__ import annotations

from sax.proto import transcripts_pb2
from sax.speech import Segment, TimedWord, TranscriptPart, TranscriptRequest


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
