"""Handler for requests with sounds: each is decoded in another process; windows share a queue.

Runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager

from model_server.loading.audio.loaded_audio import LoadedAudio, SpeechWindow, WrittenWindow
from model_server.loading.loaded_batches import ONLY
from model_server.loading.sounds.sound_decoder import DecodedSound, SoundDecoder, sound_decoder
from model_server.serving.admission import Admission
from model_server.serving.batch_servable import BatchServable
from model_server.serving.passes.batch_calls import BatchCalls
from model_server.serving.query_cost import BatchCost
from model_server.serving.servables import Servables
from model_server.serving.transcripts.transcription import Transcription, least_duration
from model_server.sharing.audio.process import HOP, RATE
from sax.errors import QueueFull
from sax.speech.transcripts import (
    TranscriptPart,
    TranscriptRequest,
    WholeTranscript,
    whole_transcript,
)

RECOGNIZE, TRANSCRIBE = "am.recognize", "am.transcribe"
_MOST_HELD = 2 << 30  # bytes of spectrograms of sounds on their way to one model
_RETRY_S = 5.0

Ear = BatchServable[LoadedAudio]


class AudioCalls(BatchCalls[LoadedAudio]):
    def __init__(self, servables: Servables, admission: Admission) -> None:
        super().__init__(servables, admission, LoadedAudio)

    async def transcribe(
        self, request: TranscriptRequest, cost: BatchCost | None = None, method: str = TRANSCRIBE
    ) -> AsyncGenerator[TranscriptPart, None]:
        """Yield the duration of a sound, then what it says, window by window, and add the device
        time to the cost.

        Raises InvalidRequest for a bad sound, a language that the model does not know, or a model
        of another kind, PermissionDenied, NotLoaded, QueueFull, ShuttingDown, Unavailable.
        """
        with self._request(request.model_id, method) as servable:
            async with aclosing(transcribed(servable, request, cost)) as parts:
                async for part in parts:
                    yield part

    async def recognize(
        self, request: TranscriptRequest, cost: BatchCost | None = None
    ) -> WholeTranscript:
        """Return what a sound says. Raises as `transcribe`."""
        async with aclosing(self.transcribe(request, cost, RECOGNIZE)) as parts:
            return whole_transcript([part async for part in parts])


async def transcribed(
    ear: Ear,
    request: TranscriptRequest,
    cost: BatchCost | None = None,
    decoder: SoundDecoder | None = None,
) -> AsyncGenerator[TranscriptPart, None]:
    """Yield the sound's duration, then what each window says, and add to the cost. Closing the
    generator frees what the sound holds, its window within some steps.

    decoder: None: the process's own. Raises InvalidRequest for a bad sound or language, QueueFull,
    NotLoaded, Unavailable.
    """

    async def ask(window: SpeechWindow) -> WrittenWindow:
        return await ear.ask(window, cost)

    decoder = decoder or sound_decoder()
    with _entered(ear):
        on_way = Transcription(ear.loaded, request, ask)
        sound = await asyncio.wrap_future(decoder.submit(request.sound, ear.loaded.form))
        with _holding(ear, sound):
            duration = least_duration(sound.samples, RATE)
            yield TranscriptPart(duration=duration, language=on_way.code)
            frames = min(len(sound.mels), -(-sound.samples // HOP))
            try:
                async with aclosing(on_way.parts(sound.mels, frames)) as parts:
                    async for part in parts:
                        yield part
            finally:
                on_way.gone.set()


@contextmanager
def _entered(ear: Ear) -> Iterator[None]:
    batching = ear.loaded.batching[ONLY]
    if ear.inside >= batching.queue + batching.most:
        raise _full(ear, f"{ear.inside} sounds are on their way")
    with ear.request():
        yield


@contextmanager
def _holding(ear: Ear, sound: DecodedSound) -> Iterator[None]:
    size = sound.mels.nbytes
    if ear.held and ear.held + size > _MOST_HELD:
        raise _full(ear, f"sounds of {ear.held >> 20} MiB are on their way")
    ear.held += size
    try:
        yield
    finally:
        ear.held -= size


def _full(ear: Ear, why: str) -> QueueFull:
    return QueueFull(
        f"this replica is full ({why} for {ear.model_id}); retry in {_RETRY_S:.0f} s",
        retry_after_s=_RETRY_S,
    )
