"""Forms of images: sizes in pixels that a model takes, and how an image is brought to one.

A form is tagged, so that a process told of one by a message knows which it is. Each says by itself
how large an image becomes; the decoding process resizes and cuts accordingly (see `images`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

BICUBIC = 3  # Pillow's number


class ImageFit(NamedTuple):
    """How one image is brought to a form: resized, then cut to a box."""

    resized: tuple[int, int]  # width and height
    box: tuple[int, int, int, int]  # left, top, right, bottom; what is outside the image is black

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the result."""
        left, top, right, bottom = self.box
        return right - left, bottom - top


class SquareForm(msgspec.Struct, frozen=True, array_like=True, tag="square"):
    """Every image is resized, then cut to a square."""

    size: int  # pixels of a side of the square
    shortest: int | None  # pixels of the shorter side before the cut; None: squeezed to the square
    resample: int  # Pillow's number of a filter: 0 nearest, 2 bilinear, 3 bicubic, ...

    def fit(self, width: int, height: int) -> ImageFit:
        resized = self._resized(width, height)
        left, top = ((side - self.size) // 2 for side in resized)
        return ImageFit(resized, (left, top, left + self.size, top + self.size))

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        if self.shortest is None:
            return self.size, self.size
        if width <= height:
            return self.shortest, self.shortest * height // width
        return self.shortest * width // height, self.shortest


class MultiplesForm(msgspec.Struct, frozen=True, array_like=True, tag="multiples"):
    """Each side becomes a multiple of `factor`; the number of pixels stays between two bounds.

    The rounding is that of transformers' processors of Qwen2-VL and its successors.
    """

    factor: int
    least: int  # pixels of an image
    most: int
    resample: int = BICUBIC

    def fit(self, width: int, height: int) -> ImageFit:
        resized = self._resized(width, height)
        return ImageFit(resized, (0, 0, *resized))

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        factor = self.factor
        wide, high = round(width / factor), round(height / factor)
        if wide * high * factor**2 > self.most:
            by = math.sqrt(height * width / self.most)
            wide, high = (max(1, math.floor(side / by / factor)) for side in (width, height))
        elif wide * high * factor**2 < self.least:
            by = math.sqrt(self.least / (height * width))
            wide, high = (math.ceil(side * by / factor) for side in (width, height))
        return wide * factor, high * factor


ImageForm = SquareForm | MultiplesForm
