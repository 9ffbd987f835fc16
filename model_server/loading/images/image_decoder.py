"""Decodes images in processes of their own, so that no image can hold up the server or break it."""

from __future__ import annotations

import importlib.util
from concurrent.futures import Future
from functools import cache

import numpy as np

from model_server.loading.decoding_lanes import LANES, WAITING, DecodingLanes, InputKind
from model_server.sharing.images.forms import ImageForm
from model_server.sharing.images.process import ImageAnswer, ImageAsk, ImageProcess
from sax.distribution import how_to_install
from sax.errors import LoadFailed


def _pixels(_: ImageAsk, answer: ImageAnswer) -> np.ndarray:
    pixels = np.frombuffer(answer.pixels, np.uint8)
    return pixels.reshape(answer.height, answer.width, 3)


_IMAGES = InputKind(
    name="image", param="image_bytes", retry_s=1.0, process=ImageProcess, read=_pixels
)


class ImageDecoder:
    """Thread-safe. Its processes start with the first images and end with this one."""

    def __init__(self, lanes: int = LANES, waiting: int = WAITING) -> None:
        """waiting: bytes of images that may wait."""
        self._lanes = DecodingLanes(_IMAGES, lanes, waiting)

    def submit(self, image: bytes, form: ImageForm) -> Future[np.ndarray]:
        """Decode an image to u8[height, width, 3]. Raises QueueFull; the future raises
        InvalidRequest for a bad image, and Unavailable.
        """
        return self._lanes.submit(ImageAsk(image, form), len(image))


def check_pillow(otherwise: str = "") -> None:
    """Raise LoadFailed if nothing can decode images here. otherwise: what can be done instead."""
    if importlib.util.find_spec("PIL") is None:
        raise LoadFailed(
            "models that take images need the package Pillow, which decodes them, and it is not "
            f"installed here: {how_to_install('media')}{otherwise}"
        )


@cache
def image_decoder() -> ImageDecoder:
    """Return the decoder of this process."""
    return ImageDecoder()
