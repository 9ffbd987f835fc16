"""Handler for requests with sounds. Runs on the event loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from model_server.serving.admission import Admission, check_method, refusal
from model_server.serving.query_cost import BatchCost
from model_server.serving.servables import Servables
from model_server.serving.transcripts.audio_servable import AudioServable
from sax.auth.acl import caller
from sax.speech.transcripts import (
    TranscriptPart,
    TranscriptRequest,
    WholeTranscript,
    whole_transcript,
)

RECOGNIZE, TRANSCRIBE = "am.recognize", "am.transcribe"


class AudioCalls:
    def __init__(self, servables: Servables, admission: Admission) -> None:
        self._servables = servables
        self._admission = admission

    async def transcribe(
        self, request: TranscriptRequest, cost: BatchCost | None = None, method: str = TRANSCRIBE
    ) -> AsyncGenerator[TranscriptPart, None]:
        """Yield the duration of a sound, then what it says, window by window, and add the device
        time to the cost.

        Raises InvalidRequest for a bad sound, a language that the model does not know, or a model
        of another kind, PermissionDenied, NotLoaded, QueueFull, ShuttingDown, Unavailable.
        """
        self._admission.check_open()
        servable = self._servables.get(request.model_id)
        if not isinstance(servable, AudioServable):
            raise refusal(servable, method)
        check_method(caller(), request.model_id, method, self._servables.acls(request.model_id))
        with self._admission.request(servable, method):
            async with aclosing(servable.transcribe(request, cost)) as parts:
                async for part in parts:
                    yield part

    async def recognize(
        self, request: TranscriptRequest, cost: BatchCost | None = None
    ) -> WholeTranscript:
        """Return what a sound says. Raises as `transcribe`."""
        async with aclosing(self.transcribe(request, cost, RECOGNIZE)) as parts:
            return whole_transcript([part async for part in parts])
