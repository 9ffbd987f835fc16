"""Messages between a server and the process that decodes images."""

from __future__ import annotations

from typing import Literal

import msgspec

from model_server.sharing.images.forms import ImageForm

MAX_PIXELS = 50_000_000  # of an image as it was sent
MAX_SIDES = 100  # the longer side of an image in shorter ones


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
