"""Decodes images, sounds and videos in processes of their own: none can hold up the server or break
it.
"""

from __future__ import annotations

import importlib.util
from concurrent.futures import Future
from functools import cache
from typing import NamedTuple

import numpy as np

from model_server.loading.decoding_lanes import LANES, WAITING, DecodingLanes, InputKind
from model_server.models.media.media_recipe import DecodedVideo
from model_server.sharing.audio.process import SoundAnswer, SoundAsk, SoundForm, SoundProcess
from model_server.sharing.images.forms import ImageForm
from model_server.sharing.images.process import ImageAnswer, ImageAsk, ImageProcess
from model_server.sharing.videos.process import VideoAnswer, VideoAsk, VideoForm, VideoProcess
from sax.chat import frames_in
from sax.distribution import how_to_install
from sax.errors import InvalidRequest, LoadFailed


def _image(_: ImageAsk, answer: ImageAnswer) -> np.ndarray:
    pixels = np.frombuffer(answer.pixels, np.uint8)
    return pixels.reshape(answer.height, answer.width, 3)


_IMAGES = InputKind(
    name="image", param="image_bytes", retry_s=1.0, process=ImageProcess, read=_image
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


class DecodedSound(NamedTuple):
    mels: np.ndarray  # f32[frames, bins]; of a form without bins the samples, f32[n]
    samples: int  # at 16 kHz, without the silence after them


def _sound(ask: SoundAsk, answer: SoundAnswer) -> DecodedSound:
    mels, bins = np.frombuffer(answer.spectrogram, np.float32), ask.form.bins
    return DecodedSound(mels.reshape(-1, bins) if bins else mels, answer.samples)


_SOUNDS = InputKind(name="sound", param="file", retry_s=2.0, process=SoundProcess, read=_sound)


class SoundDecoder:
    """Thread-safe. Its processes start with the first sounds and end with this one."""

    def __init__(self, lanes: int = LANES, waiting: int = WAITING) -> None:
        """waiting: bytes of sounds that may wait."""
        self._lanes = DecodingLanes(_SOUNDS, lanes, waiting)

    def submit(self, sound: bytes, form: SoundForm) -> Future[DecodedSound]:
        """Decode a sound. Raises QueueFull; the future raises InvalidRequest for a bad sound, and
        Unavailable.
        """
        return self._lanes.submit(SoundAsk(sound, form), len(sound))


def check_soundfile(otherwise: str = "") -> None:
    """Raise LoadFailed if nothing can decode sounds here. otherwise: what can be done instead."""
    if importlib.util.find_spec("soundfile") is None:
        raise LoadFailed(
            "models of sounds need the package soundfile, which decodes them, and it is not "
            f"installed here: {how_to_install('media')}{otherwise}"
        )


@cache
def sound_decoder() -> SoundDecoder:
    """Return the decoder of this process."""
    return SoundDecoder()


def _video(_: VideoAsk, answer: VideoAnswer) -> DecodedVideo:
    frames = np.frombuffer(answer.frames, np.uint8)
    frames = frames.reshape(-1, answer.height, answer.width, 3)
    return DecodedVideo(frames, answer.indices, answer.rate, answer.total)


_VIDEOS = InputKind(name="video", param="messages", retry_s=2.0, process=VideoProcess, read=_video)


class VideoDecoder:
    """Thread-safe. Its processes start with the first videos and end with this one."""

    def __init__(self, lanes: int = LANES, waiting: int = WAITING) -> None:
        """waiting: bytes of videos that may wait."""
        self._lanes = DecodingLanes(_VIDEOS, lanes, waiting)

    def submit(self, video: bytes, form: VideoForm) -> Future[DecodedVideo]:
        """Decode a video. Raises QueueFull, and InvalidRequest for torn images; the future raises
        InvalidRequest for a bad video, and Unavailable.
        """
        return self._lanes.submit(_ask(video, form), len(video))


def _ask(video: bytes, form: VideoForm) -> VideoAsk:
    try:
        images = frames_in(video)
    except ValueError as exc:
        raise InvalidRequest(f"the video {exc}", param=_VIDEOS.param) from exc
    return VideoAsk(video, form) if images is None else VideoAsk(b"", form, images)


def check_av() -> None:
    """Raise InvalidRequest if nothing can decode videos here."""
    if importlib.util.find_spec("av") is None:
        raise InvalidRequest(
            "videos need the package av on the model server, which decodes them, and it is not "
            f"installed there: {how_to_install('media')}; or send some frames as images"
        )


@cache
def video_decoder() -> VideoDecoder:
    """Return the decoder of this process."""
    return VideoDecoder()
