"""Saxml's AudioService and our TranscriptService: decode a request, call the handler, encode what
comes back.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from model_server.services.cost_trailer import tell_cost
from model_server.serving.passes.sounds import AudioCalls
from model_server.serving.query_cost import BatchCost
from sax.errors import UnsupportedParameter
from sax.proto import audio_pb2, audio_pb2_grpc, transcripts_pb2, transcripts_pb2_grpc
from sax.speech.transcripts import TranscriptRequest
from sax.wire.extra_inputs import refuse_extra_inputs
from sax.wire.request_bounds import check_recognize, check_transcribe
from sax.wire.transcripts import decode_transcribe, encode_part


class AudioService(audio_pb2_grpc.AudioServiceServicer):
    def __init__(self, calls: AudioCalls) -> None:
        self._calls = calls

    async def Recognize(self, request: Any, context: Any) -> audio_pb2.AsrResponse:
        """Answer with one hypothesis: greedy decoding makes no others."""
        check_recognize(request)
        refuse_extra_inputs(request.extra_inputs, "Recognize")
        if request.audio_format == audio_pb2.AsrRequest.DATA_UTTERANCE:
            raise UnsupportedParameter(
                "audio_format DATA_UTTERANCE is a format inside Google and is not read here: send "
                "WAVEFORM_FILE, the bytes of a WAV, FLAC, MP3 or Ogg file",
                param="audio_format",
            )
        cost = BatchCost()
        given = TranscriptRequest(model_id=request.model_key, sound=request.audio_bytes)
        found = await self._calls.recognize(given, cost)
        tell_cost(context, cost.milliseconds)
        return audio_pb2.AsrResponse(
            hyps=[audio_pb2.AsrHypothesis(text=found.text, score=found.score)]
        )


class TranscriptService(transcripts_pb2_grpc.TranscriptServiceServicer):
    def __init__(self, calls: AudioCalls) -> None:
        self._calls = calls

    async def Transcribe(
        self, request: Any, context: Any
    ) -> AsyncGenerator[transcripts_pb2.TranscribeResponse, None]:
        check_transcribe(request)
        cost = BatchCost()
        async with aclosing(self._calls.transcribe(decode_transcribe(request), cost)) as parts:
            async for part in parts:
                yield encode_part(part)
        tell_cost(context, cost.milliseconds)
