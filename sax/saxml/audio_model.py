"""Saxml's audio method: `sax.Model(id).AM().Recognize(audio_bytes)`.

Models of sounds give one guess; transcripts with times are `sax.client.Client.transcribe`.
"""

from __future__ import annotations

from sax.proto import audio_pb2
from sax.saxml.model_handle import Media, ModelHandle, as_bytes
from sax.saxml.options import ModelOptions
from sax.wire import services


class AudioModel:
    """Audio methods of one model."""

    def __init__(self, handle: ModelHandle) -> None:
        self._handle = handle

    def Recognize(
        self, audio_bytes: Media, options: ModelOptions | None = None
    ) -> list[tuple[str, float]]:
        """Return what a sound may say: (text, score) of each guess."""
        request = audio_pb2.AsrRequest(audio_bytes=as_bytes(audio_bytes))
        reply = self._handle.ask(services.RECOGNIZE, request, options)
        return [(guess.text, guess.score) for guess in reply.hyps]
