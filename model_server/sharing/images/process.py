"""A process that decodes images: the server's end, and the messages between the two."""

from __future__ import annotations

from typing import Literal

import msgspec

from model_server.sharing.confined.pipe import framed
from model_server.sharing.confined.process import ConfinedProcess
from model_server.sharing.images.forms import ImageForm

MAX_PIXELS = 50_000_000  # of an image as it was sent


class ImageAsk(msgspec.Struct, frozen=True, array_like=True):
    """Decode one image."""

    image: bytes
    form: ImageForm


class ImageAnswer(msgspec.Struct, frozen=True, array_like=True):
    kind: Literal["pixels", "refused", "runaway"]
    pixels: bytes = b""  # u8[height, width, 3]
    text: str = ""  # the end of a sentence that begins "the image"
    height: int = 0
    width: int = 0


SECONDS = 5.0  # of processor time for one image
_WALL_S = 15.0  # for one image, on a machine too busy to give the process its processor time
_MOST = 128 << 20  # bytes of an answer: a hundred of Step 3.7's windows, the most of any form
_WORKER = "model_server.sharing.images.worker"
_DECODER = msgspec.msgpack.Decoder(ImageAnswer)


class ImageProcess(ConfinedProcess):
    def __init__(self, seconds: float = SECONDS) -> None:
        """`seconds`: processor time for one image."""
        super().__init__(
            _WORKER, seconds, 0, doing="decodes it", most=_MOST, wall_s=max(_WALL_S, seconds)
        )

    def answer(self, ask: ImageAsk) -> ImageAnswer:
        """Raises ProcessEnded, ProcessStarved, OSError."""
        return self.exchange(framed(msgspec.msgpack.encode(ask)), _DECODER.decode)
