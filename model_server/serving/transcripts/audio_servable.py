"""A loaded model of sounds: each is decoded in another process; windows of all share one queue."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager, suppress

from model_server.loading.loaded import LoadedAudio, SpeechWindow, WrittenWindow
from model_server.loading.sounds.sound_decoder import DecodedSound, SoundDecoder, sound_decoder
from model_server.serving.batcher import Batcher, RunnerThread
from model_server.serving.method_stats import MethodStats
from model_server.serving.query_cost import BatchCost
from model_server.serving.transcripts.transcription import Transcription, least_duration
from model_server.sharing.audio.process import HOP, RATE
from sax.activity import IDLE
from sax.errors import QueueFull
from sax.speech.transcripts import TranscriptPart, TranscriptRequest

_RECENT_BATCHES = 10
_WAIT_S = 0.005  # well below one window
_MOST_HELD = 2 << 30  # bytes of spectrograms of sounds on their way
_RETRY_S = 5.0


class AudioServable:
    """Runs on the event loop; batches run on one thread."""

    kind = "a model of sounds"
    note = ""
    kernels = ""
    activity = IDLE

    def __init__(
        self, model_id: str, loaded: LoadedAudio, decoder: SoundDecoder | None = None
    ) -> None:
        """decoder: None: the process's own."""
        self.model_id = model_id
        self.loaded = loaded
        self.memory = loaded.memory
        self.parts = loaded.parts
        self.methods = {name: MethodStats() for name in loaded.methods}
        self.recent_batch_sizes: deque[int] = deque(maxlen=_RECENT_BATCHES)
        self.cancelled = 0
        self.batches = 0
        self.failure: str | None = None  # errors end a request, never the model
        self._decoder = decoder or sound_decoder()
        self._sounds = 0  # on their way
        self._held = 0  # bytes of their spectrograms
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = RunnerThread(model_id, loaded.runner)
        self._batcher: Batcher[SpeechWindow, WrittenWindow] = Batcher(
            loaded.runner.write,
            self._thread.worker,
            name=model_id,
            most=loaded.runner.batch,
            wait_s=_WAIT_S,
            queue=loaded.queue,
            devices=loaded.devices,
            on_batch=self._count,
        )

    @property
    def running(self) -> int:
        """Windows in the running batch."""
        return self._batcher.running

    @property
    def waiting(self) -> int:
        """Sounds of which no window is in the running batch."""
        return max(0, self._sounds - self._batcher.running)

    async def transcribe(
        self, request: TranscriptRequest, cost: BatchCost | None = None
    ) -> AsyncGenerator[TranscriptPart, None]:
        """Yield the sound's duration, then what each window says, and add to the cost. Closing the
        generator frees what the sound holds, its window within some steps.

        Raises InvalidRequest for a bad sound or language, QueueFull, NotLoaded, Unavailable.
        """

        async def ask(window: SpeechWindow) -> WrittenWindow:
            return await self._batcher.ask(window, cost)

        with self._entered():
            on_way = Transcription(self.loaded, request, ask)
            sound = await asyncio.wrap_future(self._decoder.submit(request.sound, self.loaded.form))
            with self._holding(sound):
                duration = least_duration(sound.samples, RATE)
                yield TranscriptPart(duration=duration, language=on_way.code)
                frames = min(len(sound.mels), -(-sound.samples // HOP))
                try:
                    async with aclosing(on_way.parts(sound.mels, frames)) as parts:
                        async for part in parts:
                            yield part
                finally:
                    on_way.gone.set()

    async def close(self, drain_s: float) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + drain_s
        with suppress(TimeoutError):
            async with asyncio.timeout_at(end_s):
                await self._idle.wait()
        await self._thread.close([self._batcher], max(0.0, end_s - loop.time()))

    @contextmanager
    def _entered(self) -> Iterator[None]:
        if self._sounds >= self.loaded.queue + self.loaded.runner.batch:
            raise self._full(f"{self._sounds} sounds are on their way")
        self._sounds += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._sounds -= 1
            if not self._sounds:
                self._idle.set()

    @contextmanager
    def _holding(self, sound: DecodedSound) -> Iterator[None]:
        size = sound.mels.nbytes
        if self._held and self._held + size > _MOST_HELD:
            raise self._full(f"sounds of {self._held >> 20} MiB are on their way")
        self._held += size
        try:
            yield
        finally:
            self._held -= size

    def _full(self, why: str) -> QueueFull:
        return QueueFull(
            f"this replica is full ({why} for {self.model_id}); retry in {_RETRY_S:.0f} s",
            retry_after_s=_RETRY_S,
        )

    def _count(self, size: int) -> None:
        self.batches += 1
        self.recent_batch_sizes.append(size)
