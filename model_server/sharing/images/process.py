"""The server's end of a process that decodes images."""

from __future__ import annotations

import msgspec

from model_server.sharing.confined.pipe import framed
from model_server.sharing.confined.process import ConfinedProcess
from model_server.sharing.images.frames import ImageAnswer, ImageAsk

SECONDS = 5.0  # of processor time for one image
_WALL_S = 15.0  # for one image, on a machine too busy to give the process its processor time
_MOST = 64 << 20  # bytes of an answer: far above any form
_WORKER = "model_server.sharing.images.worker"
_DECODER = msgspec.msgpack.Decoder(ImageAnswer)


class ImageProcess(ConfinedProcess):
    def __init__(self, seconds: float = SECONDS) -> None:
        """`seconds`: processor time for one image."""
        super().__init__(
            _WORKER, seconds, 0, doing="decodes it", most=_MOST, wall_s=max(_WALL_S, seconds)
        )

    def answer(self, ask: ImageAsk) -> ImageAnswer:
        """Raises ProcessEnded, OSError."""
        return self.exchange(framed(msgspec.msgpack.encode(ask)), _DECODER.decode)
