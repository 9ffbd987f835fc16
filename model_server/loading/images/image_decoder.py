"""Decodes images in processes of their own, so that no image can hold up the server or break it.

A few lanes, each a thread and a process that decode one image after the other. A process ends after
an image that exceeded a limit, and when it has had nothing to do for a while.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from concurrent.futures import Future
from functools import cache
from queue import Empty, SimpleQueue
from typing import NamedTuple

import numpy as np

from model_server.sharing.confined.process import ProcessEnded
from model_server.sharing.images.forms import ImageForm
from model_server.sharing.images.frames import ImageAsk
from model_server.sharing.images.process import ImageProcess
from sax.errors import InvalidRequest, LoadFailed, QueueFull, Unavailable

_IDLE_S = 60.0
_LANES = 4
_WAITING = 256 << 20  # bytes of images that may wait
_RETRY_S = 1.0


class _WaitingImage(NamedTuple):
    ask: ImageAsk
    pixels: Future[np.ndarray]


class ImageDecoder:
    """Thread-safe. Its processes start with the first images and end with this one."""

    def __init__(self, lanes: int = _LANES, waiting: int = _WAITING) -> None:
        """waiting: bytes of images that may wait."""
        self._images: SimpleQueue[_WaitingImage] = SimpleQueue()
        self._lock = threading.Lock()
        self._lanes = lanes
        self._started = 0
        self._most, self._held = waiting, 0

    def submit(self, image: bytes, form: ImageForm) -> Future[np.ndarray]:
        """Decode an image to u8[height, width, 3]. Raises QueueFull; the future raises
        InvalidRequest for a bad image, and Unavailable.
        """
        self._enter(len(image))
        waiting = _WaitingImage(ImageAsk(image, form), Future())
        waiting.pixels.add_done_callback(lambda _: self._leave(len(image)))
        self._images.put(waiting)
        return waiting.pixels

    def _enter(self, size: int) -> None:
        with self._lock:
            if self._held and self._held + size > self._most:
                raise QueueFull(
                    f"{self._held >> 20} MiB of images wait to be decoded, which is all that this "
                    f"server holds; retry in {_RETRY_S:.0f} s",
                    retry_after_s=_RETRY_S,
                )
            self._held += size
            if self._started < self._lanes:  # one more for each image, until all are there
                self._started += 1
                threading.Thread(target=self._run, name="images", daemon=True).start()

    def _leave(self, size: int) -> None:
        with self._lock:
            self._held -= size

    def _run(self) -> None:
        process = ImageProcess()
        while True:
            try:
                image = self._images.get(timeout=_IDLE_S)
            except Empty:
                process.stop()
                image = self._images.get()
            if image.pixels.set_running_or_notify_cancel():
                _decode(process, image)
            del image  # keep none alive while waiting


def _decode(process: ImageProcess, image: _WaitingImage) -> None:
    try:
        image.pixels.set_result(_pixels(process, image.ask))
    except Exception as exc:
        image.pixels.set_exception(exc)


def _pixels(process: ImageProcess, ask: ImageAsk) -> np.ndarray:
    try:
        answer = process.answer(ask)
    except ProcessEnded as exc:
        raise InvalidRequest(f"the image cannot be decoded: it {exc}", param="image_bytes") from exc
    except OSError as exc:
        raise Unavailable(f"no process can be started to decode images: {exc}") from exc
    if answer.kind == "runaway":
        process.stop()  # its memory may be full
    if answer.kind != "pixels":
        raise InvalidRequest(f"the image {answer.text}", param="image_bytes")
    return np.frombuffer(answer.pixels, np.uint8).reshape(answer.height, answer.width, 3)


def check_pillow(otherwise: str = "") -> None:
    """Raise LoadFailed if nothing can decode images here. otherwise: what can be done instead."""
    if importlib.util.find_spec("PIL") is None:
        raise LoadFailed(
            "models that take images need the package Pillow, which decodes them, and it is not "
            f"installed here: pip install '.[media]' in a clone of sax{otherwise}"
        )


@cache
def image_decoder() -> ImageDecoder:
    """Return the decoder of this process."""
    return ImageDecoder(min(_LANES, os.cpu_count() or 1))
