"""Decodes what strangers sent in processes of their own, which it can neither hold up nor break.

A few lanes, each a thread and a process that decode one input after the other. A process ends after
an input that exceeded a limit, and when it has had nothing to do for a while.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from queue import Empty, SimpleQueue
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from model_server.models.media.media_recipe import DecodedVideo
from model_server.sharing.audio.process import SoundAnswer, SoundAsk, SoundForm, SoundProcess
from model_server.sharing.confined.process import ProcessEnded, ProcessStarved
from model_server.sharing.images.forms import ImageForm
from model_server.sharing.images.process import ImageAnswer, ImageAsk, ImageProcess
from model_server.sharing.videos.process import AnyVideoForm, VideoAnswer, VideoAsk, VideoProcess
from sax.chat import frames_in
from sax.distribution import how_to_install
from sax.errors import InvalidRequest, LoadFailed, QueueFull, Unavailable

LANES = min(4, os.cpu_count() or 1)
WAITING = 256 << 20  # bytes of inputs that may wait
_IDLE_S = 60.0

Ask = TypeVar("Ask")
Decoded = TypeVar("Decoded")


class DecodingAnswer(Protocol):
    @property
    def kind(self) -> str:
        """One of refused, runaway (it reached its limit of memory) and the name of a result."""
        ...

    @property
    def text(self) -> str:
        """The end of a sentence that begins with "the" and the input, if it is refused."""
        ...


Answer = TypeVar("Answer", bound=DecodingAnswer)


_Given = TypeVar("_Given", contravariant=True)
_Made = TypeVar("_Made", covariant=True)


class DecodingProcess(Protocol[_Given, _Made]):
    def answer(self, ask: _Given, /) -> _Made:
        """Raises ProcessEnded, ProcessStarved, OSError."""
        ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InputKind(Generic[Ask, Answer, Decoded]):
    """One kind of input and its decoding."""

    name: str  # for messages: image
    param: str  # field of a request
    retry_s: float  # after a refusal because too many wait
    process: Callable[[], DecodingProcess[Ask, Answer]]
    read: Callable[[Ask, Answer], Decoded]  # an answer that is no refusal


class _WaitingInput(NamedTuple, Generic[Ask, Decoded]):
    ask: Ask
    decoded: Future[Decoded]


class DecodingLanes(Generic[Ask, Answer, Decoded]):
    """Thread-safe. Its processes start with the first inputs and end with this one."""

    def __init__(
        self,
        kind: InputKind[Ask, Answer, Decoded],
        lanes: int,
        waiting: int,
        idle_s: float = _IDLE_S,
    ) -> None:
        """waiting: bytes of inputs that may wait."""
        self._kind = kind
        self._inputs: SimpleQueue[_WaitingInput[Ask, Decoded]] = SimpleQueue()
        self._lock = threading.Lock()
        self._lanes, self._started = lanes, 0
        self._most, self._held = waiting, 0
        self._idle_s = idle_s

    def submit(self, ask: Ask, size: int) -> Future[Decoded]:
        """Decode an input of so many bytes. Raises QueueFull; the future raises InvalidRequest for
        a bad input, and Unavailable.
        """
        self._enter(size)
        waiting = _WaitingInput[Ask, Decoded](ask, Future())
        waiting.decoded.add_done_callback(lambda _: self._leave(size))
        self._inputs.put(waiting)
        return waiting.decoded

    def _enter(self, size: int) -> None:
        name, retry_s = f"{self._kind.name}s", self._kind.retry_s
        with self._lock:
            if self._held and self._held + size > self._most:
                raise QueueFull(
                    f"{self._held >> 20} MiB of {name} wait to be decoded, which is all that this "
                    f"server holds; retry in {retry_s:.0f} s",
                    retry_after_s=retry_s,
                )
            self._held += size
            if self._started < self._lanes:  # one more for each input, until all are there
                self._started += 1
                threading.Thread(target=self._run, name=name, daemon=True).start()

    def _leave(self, size: int) -> None:
        with self._lock:
            self._held -= size

    def _run(self) -> None:
        process = self._kind.process()
        while True:
            try:
                waiting = self._inputs.get(timeout=self._idle_s)
            except Empty:
                process.stop()
                waiting = self._inputs.get()
            if waiting.decoded.set_running_or_notify_cancel():
                self._decode(process, waiting)
            del waiting  # keep none alive while waiting

    def _decode(
        self, process: DecodingProcess[Ask, Answer], waiting: _WaitingInput[Ask, Decoded]
    ) -> None:
        try:
            waiting.decoded.set_result(self._decoded(process, waiting.ask))
        except Exception as exc:
            waiting.decoded.set_exception(exc)

    def _decoded(self, process: DecodingProcess[Ask, Answer], ask: Ask) -> Decoded:
        name, param = self._kind.name, self._kind.param
        try:
            answer = process.answer(ask)
        except ProcessEnded as exc:
            raise InvalidRequest(f"the {name} cannot be decoded: it {exc}", param=param) from exc
        except ProcessStarved as exc:
            raise Unavailable(f"{exc}: send it later", retry_after_s=self._kind.retry_s) from exc
        except OSError as exc:
            raise Unavailable(f"no process can be started to decode {name}s: {exc}") from exc
        if answer.kind == "runaway":
            process.stop()  # its memory may be full
        if answer.kind in ("refused", "runaway"):
            raise InvalidRequest(f"the {name} {answer.text}", param=param)
        return self._kind.read(ask, answer)


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


def _video(ask: VideoAsk, answer: VideoAnswer) -> DecodedVideo:
    frames = np.frombuffer(answer.frames, np.uint8)
    frames = frames.reshape(-1, answer.height, answer.width, 3)
    samples = np.frombuffer(answer.samples, np.float32) if ask.seconds else None
    return DecodedVideo(frames, answer.indices, answer.rate, answer.total, samples)


_VIDEOS = InputKind(name="video", param="messages", retry_s=2.0, process=VideoProcess, read=_video)


class VideoDecoder:
    """Thread-safe. Its processes start with the first videos and end with this one."""

    def __init__(self, lanes: int = LANES, waiting: int = WAITING) -> None:
        """waiting: bytes of videos that may wait."""
        self._lanes = DecodingLanes(_VIDEOS, lanes, waiting)

    def submit(self, video: bytes, form: AnyVideoForm, seconds: int = 0) -> Future[DecodedVideo]:
        """Decode a video. seconds: of its sound at most; 0: its frames alone.

        Raises QueueFull, and InvalidRequest for torn images; the future raises
        InvalidRequest for a bad video, and Unavailable.
        """
        return self._lanes.submit(_video_ask(video, form, seconds), len(video))


def _video_ask(video: bytes, form: AnyVideoForm, seconds: int) -> VideoAsk:
    try:
        images = frames_in(video)
    except ValueError as exc:
        raise InvalidRequest(f"the video {exc}", param=_VIDEOS.param) from exc
    if images is None:
        return VideoAsk(video, form, seconds=seconds)
    return VideoAsk(b"", form, images, seconds)


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
