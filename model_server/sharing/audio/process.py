"""The server's end of a process that decodes sounds."""

from __future__ import annotations

import msgspec

from model_server.sharing.audio.frames import SoundAnswer, SoundAsk
from model_server.sharing.confined.pipe import framed
from model_server.sharing.confined.process import ConfinedProcess

SECONDS = 60.0  # of processor time for one sound: two hours of MP3 take a third of it
_WALL_S = 180.0  # for one sound, on a machine too busy to give the process its processor time
_MOST = 1 << 30  # bytes of an answer: far above two hours
_WORKER = "model_server.sharing.audio.worker"
_DECODER = msgspec.msgpack.Decoder(SoundAnswer)


class SoundProcess(ConfinedProcess):
    def __init__(self, seconds: float = SECONDS) -> None:
        """`seconds`: processor time for one sound."""
        super().__init__(
            _WORKER, seconds, 5, doing="decodes it", most=_MOST, wall_s=max(_WALL_S, seconds)
        )

    def answer(self, ask: SoundAsk) -> SoundAnswer:
        """Raises ProcessEnded, OSError."""
        return self.exchange(framed(msgspec.msgpack.encode(ask)), _DECODER.decode)
