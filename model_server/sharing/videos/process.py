"""A process that decodes videos: the server's end, the messages, and how frames are chosen."""

from __future__ import annotations

import ctypes
import math
from typing import Literal

import msgspec

from model_server.sharing.audio.process import RATE
from model_server.sharing.confined.pipe import framed
from model_server.sharing.confined.process import ConfinedProcess
from model_server.sharing.images.forms import BICUBIC, BudgetForm, CanvasForm, ImageFit, PaddedForm

MAX_SIDES = 200  # the longer side of a frame in shorter ones, as in transformers
MAX_FRAME_PIXELS = 1 << 24  # of a frame as it was sent
MAX_FRAMES = 1 << 17  # of a video: 73 minutes of 30 a second
MOST_PIXELS = 1 << 25  # of all frames together as a model takes them: 100 MB of bytes
_MOST_FRAMES = 768  # where no bound is known of a model, as of Qwen's
_USUAL_RATE = 24.0  # frames a second of a video that does not say it, as in transformers


class RefusedVideo(Exception):
    """The text ends a sentence that begins "the video"."""


class VideoForm(msgspec.Struct, frozen=True, array_like=True, tag="bounded"):
    """Which frames of a video a model takes, and of which size.

    Sources: `Qwen2VLVideoProcessor` and `Qwen3VLVideoProcessor` of transformers; where neither the
    file nor the class names a rate, Qwen's own 2 frames a second (qwen-vl-utils).
    """

    factor: int  # each side becomes a multiple of it
    least: int  # pixels of a frame, or of all
    most: int
    frame_most: int  # pixels of a frame that the encoder was compiled for
    together: bool  # `least` and `most` count the pixels of all frames (Qwen3-VL)
    temporal: int  # frames of a patch
    rate: float  # frames a second to take
    least_frames: int
    most_frames: int
    share: int = 0  # tokens by which the pixels of a frame are bounded further; 0: they are not
    resample: int = BICUBIC

    def indices(self, total: int, rate: float) -> list[int]:
        """Return the frames to take of so many, `rate` a second. Raises RefusedVideo."""
        if total < self.temporal:
            raise RefusedVideo(
                f"has {total} frames, and this model takes {self.temporal} or more: send an image"
            )
        count = total / rate * self.rate
        if self.together:
            count = min(max(int(count), self.least_frames), self.most_frames, total)
            return _evenly(total, count)
        most = min(self.most_frames, total) // self.temporal * self.temporal
        count = math.floor(min(max(count, self.least_frames), most) / self.temporal)
        count *= self.temporal
        # The reference counts in float32.
        return [int(_single(n * (total / count))) for n in range(count)]

    def all_indices(self, total: int) -> list[int]:
        """Return all frames of a video that a client sent as images. Raises RefusedVideo."""
        return _all(total, self.temporal, self.most_frames)

    def fit(self, width: int, height: int, frames: int) -> ImageFit:
        """Return how each of so many frames is brought to the form. Raises RefusedVideo."""
        size = self.size(width, height, frames)
        return ImageFit(size, (0, 0, *size))

    def size(self, width: int, height: int, frames: int) -> tuple[int, int]:
        """Return width and height of so many frames. Raises RefusedVideo."""
        if max(width, height) > MAX_SIDES * min(width, height):
            raise RefusedVideo(
                f"has frames of {width} x {height} pixels: one side may be at most {MAX_SIDES} "
                "times the other"
            )
        times, even = 1, frames
        if self.together:
            width, height = self._enlarged(width, height)
            times, even = frames, round(frames / self.temporal) * self.temporal
        most, factor = self._most(frames), self.factor
        wide, high = (round(side / factor) * factor for side in (width, height))
        counted = wide * high * (even if self.together else 1)
        if counted > most:
            by = math.sqrt(times * height * width / most)
            return self._down(width, by), self._down(height, by)
        if counted < self.least:
            by = math.sqrt(self.least / (times * height * width))
            return self._up(width, by), self._up(height, by)
        return wide, high

    def _most(self, frames: int) -> int:
        """Return the most pixels of a frame, or of all frames together."""
        most, least = self.most, int(self.least * 1.05)
        pixels = self.share * self.factor**2
        if self.share and self.together:
            most = max(min(pixels, most // frames), least) * frames
        elif self.share:
            most = max(min(most, int(pixels * 0.9) * self.temporal // frames), least)
        own = min(self.frame_most, MOST_PIXELS // frames)
        return min(most, own * frames if self.together else own)

    def _enlarged(self, width: int, height: int) -> tuple[int, int]:
        by = max(self.factor / height, self.factor / width)
        return (int(width * by), int(height * by)) if by > 1 else (width, height)

    def _down(self, side: int, by: float) -> int:
        return max(self.factor, math.floor(side / by / self.factor) * self.factor)

    def _up(self, side: int, by: float) -> int:
        return math.ceil(side * by / self.factor) * self.factor


class FramesForm(msgspec.Struct, frozen=True, array_like=True, tag="frames"):
    """Every frame becomes an image, however many there are.

    Source: the sampling that `BaseVideoProcessor` of transformers has.
    """

    image: PaddedForm
    rate: float  # frames a second to take

    @property
    def resample(self) -> int:
        return self.image.resample

    def indices(self, total: int, rate: float) -> list[int]:
        """Return the frames to take of so many, `rate` a second. Raises RefusedVideo."""
        count = max(1, int(total / rate * self.rate))
        if count > total:
            raise RefusedVideo(
                f"has {rate:g} frames a second, and this model takes {self.rate:g}: send one with "
                "at least as many"
            )
        if count > _MOST_FRAMES:
            raise RefusedVideo(
                f"has {count} frames at {self.rate:g} a second, and {_MOST_FRAMES} are taken: send "
                "a shorter one"
            )
        return [number * total // count for number in range(count)]

    def all_indices(self, total: int) -> list[int]:
        """Return all frames of a video that a client sent as images. Raises RefusedVideo."""
        return _all(total, 1, _MOST_FRAMES)

    def fit(self, width: int, height: int, frames: int) -> ImageFit:
        """Return how each of so many frames is brought to the form. Raises RefusedVideo."""
        fit = self.image.fit(width, height)
        wide, high = fit.size
        if wide * high * frames > MOST_PIXELS:
            raise RefusedVideo(
                f"becomes {frames} frames of {wide} x {high} pixels, and {MOST_PIXELS} pixels are "
                "taken: send a shorter or a smaller one"
            )
        return fit


class SampledForm(msgspec.Struct, frozen=True, array_like=True, tag="sampled"):
    """Some frames, evenly over the video, each an image by itself.

    Source: the sampling of `BaseVideoProcessor` of transformers, which Gemma 4's has; it refuses a
    video with fewer frames, of which all are taken here.
    """

    image: BudgetForm
    frames: int

    @property
    def resample(self) -> int:
        return self.image.resample

    def indices(self, total: int, rate: float) -> list[int]:
        """Return the frames to take of so many, whatever their rate is. Raises RefusedVideo."""
        if not total:
            raise RefusedVideo("has no frames")
        count = min(self.frames, total)
        return [number * total // count for number in range(count)]

    def all_indices(self, total: int) -> list[int]:
        """Return all frames of a video that a client sent as images. Raises RefusedVideo."""
        return _all(total, 1, self.frames)

    def fit(self, width: int, height: int, frames: int) -> ImageFit:
        """Return how each of so many frames is brought to the form."""
        return self.image.fit(width, height)


class CanvasVideoForm(msgspec.Struct, frozen=True, array_like=True, tag="canvas"):
    """Every frame lies on a canvas; the more there are, the smaller it is.

    Source: `Glm5NextVideoProcessor` of transformers.
    """

    canvas: CanvasForm
    frame_most: int  # pixels of a frame that the encoder was compiled for
    rate: float  # frames a second to take
    most_frames: int
    seconds: int = 0  # of a video that are looked at; 0: all

    @property
    def resample(self) -> int:
        return self.canvas.resample

    def indices(self, total: int, rate: float) -> list[int]:
        """Return the frames to take of so many, `rate` a second. Raises RefusedVideo."""
        lasts = total / rate
        count = int((min(lasts, self.seconds) if self.seconds else lasts) * self.rate)
        count = min(count, self.most_frames)
        found = list[int]() if total < count else self._in_steps(total, rate, int(lasts))
        if len(found) < count:
            first, last = (found[0], found[-1]) if found else (0, total - 1)
            found = _spread(first, last, count)
        elif len(found) > count:
            found = _spread(0, total - 1, count)
        if not found:
            raise RefusedVideo(
                f"lasts {lasts:.2f} s, and this model takes {self.rate:g} frames a second: send an "
                "image"
            )
        return sorted(set(found))

    def _in_steps(self, total: int, rate: float, most: int) -> list[int]:
        """Return the first frame at each step of time, up to so many seconds."""
        found, due, each = list[int](), 0.0, 1 / rate
        for frame in range(total):
            if frame * each >= due:
                due += 1 / self.rate
                found.append(frame)
                if due >= most:
                    break
        return found

    def all_indices(self, total: int) -> list[int]:
        """Return all frames of a video that a client sent as images. Raises RefusedVideo."""
        return _all(total, 1, self.most_frames)

    def fit(self, width: int, height: int, frames: int) -> ImageFit:
        """Return how each of so many frames is brought to the form."""
        even = frames + frames % 2
        each = self.canvas.temporal * self.canvas.factor**2
        pixels = min(self.frame_most, MOST_PIXELS // even) * even
        most = max(1, min(self.canvas.most, pixels // each), even // self.canvas.temporal)
        bounded = msgspec.structs.replace(
            self.canvas, most=most, least=min(self.canvas.least, most)
        )
        return bounded.fit(width, height, even)


def _spread(first: int, last: int, count: int) -> list[int]:
    """Return so many numbers between two, evenly, as numpy's linspace rounds them."""
    if count < 2:
        return [first] * count
    step = (last - first) / (count - 1)
    return [*(int(first + number * step) for number in range(count - 1)), last]


def _all(total: int, least: int, most: int) -> list[int]:
    """Return as many numbers. Raises RefusedVideo."""
    if not least <= total <= most:
        raise RefusedVideo(f"has {total} images as frames: this model takes from {least} to {most}")
    return [*range(total)]


AnyVideoForm = VideoForm | FramesForm | CanvasVideoForm | SampledForm


def rate_of(told: float | None) -> float:
    """Return the frames a second of a video that says this of itself."""
    return told if told is not None and 0 < told < math.inf else _USUAL_RATE


def _evenly(total: int, count: int) -> list[int]:
    """Return `count` of the numbers below `total`, from the first to the last."""
    step = (total - 1) / max(1, count - 1)
    return [*(round(n * step) for n in range(count - 1)), total - 1]


def _single(number: float) -> float:
    return ctypes.c_float(number).value


class VideoAsk(msgspec.Struct, frozen=True, array_like=True):
    """Decode one video."""

    video: bytes
    form: AnyVideoForm
    images: tuple[bytes, ...] | None = None  # files that are its frames, in place of `video`
    seconds: int = 0  # of its sound, which is decoded, too, at most; 0: it is not


class VideoAnswer(msgspec.Struct, frozen=True, array_like=True):
    kind: Literal["frames", "refused", "runaway"]
    frames: bytes = b""  # u8[T, height, width, 3]
    text: str = ""  # the end of a sentence that begins "the video"
    height: int = 0
    width: int = 0
    indices: tuple[int, ...] = ()  # of the frames, in the video
    rate: float = 0.0  # frames a second of the video
    total: int = 0  # its frames
    samples: bytes = b""  # f32[n] at 16 kHz: of its sound


SECONDS = 60.0  # of processor time for one video
_WALL_S = 180.0  # for one video, on a machine too busy to give the process its processor time
_MOST_S = 3600  # of the longest sound that a model hears
_MOST = 3 * MOST_PIXELS + 4 * RATE * _MOST_S + (1 << 20)  # bytes of an answer
_WORKER = "model_server.sharing.videos.worker"
_DECODER = msgspec.msgpack.Decoder(VideoAnswer)


class VideoProcess(ConfinedProcess):
    def __init__(self, seconds: float = SECONDS) -> None:
        """`seconds`: processor time for one video."""
        super().__init__(
            _WORKER, seconds, 5, doing="decodes it", most=_MOST, wall_s=max(_WALL_S, seconds)
        )

    def answer(self, ask: VideoAsk) -> VideoAnswer:
        """Raises ProcessEnded, ProcessStarved, OSError."""
        return self.exchange(framed(msgspec.msgpack.encode(ask)), _DECODER.decode)
