"""Messages between a server and the process that decodes images."""

from __future__ import annotations

from typing import Literal

import msgspec

MAX_PIXELS = 50_000_000  # of an image as it was sent
MAX_SIDES = 100  # the longer side of an image in shorter ones


class ImageForm(msgspec.Struct, frozen=True, array_like=True):
    """Preprocessing of a model's images: resized, then cut to a square of RGB pixels."""

    size: int  # pixels of a side of the square
    shortest: int | None  # pixels of the shorter side before the cut; None: squeezed to the square
    resample: int  # Pillow's number of a filter: 0 nearest, 2 bilinear, 3 bicubic, ...

    @property
    def bytes(self) -> int:
        return 3 * self.size * self.size


class ImageAsk(msgspec.Struct, frozen=True, array_like=True):
    """Decode one image."""

    image: bytes
    form: ImageForm


class ImageAnswer(msgspec.Struct, frozen=True, array_like=True):
    kind: Literal["pixels", "refused", "runaway"]
    pixels: bytes = b""  # u8[size, size, 3]
    text: str = ""  # the end of a sentence that begins "the image"
