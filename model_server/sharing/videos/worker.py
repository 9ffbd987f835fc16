"""The process that decodes videos, within limits of time and memory.

    python -m model_server.sharing.videos.worker SECONDS NICENESS

Reads requests from standard input and writes answers to standard output until the input ends.
Videos and their sounds are decoded with FFmpeg's libraries (PyAV). Only containers and codecs that
are listed here are opened, so that no file can name another one, an address or a decoder that
nobody uses.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Any, cast

import av
import av.error
import msgspec
import numpy as np
from msgspec.structs import replace
from PIL import Image

from model_server.sharing.audio.process import RATE
from model_server.sharing.audio.resampler import Resampler
from model_server.sharing.confined.limits import confine, run
from model_server.sharing.confined.pipe import framed
from model_server.sharing.images.forms import ImageFit
from model_server.sharing.images.worker import RefusedImage, decoded
from model_server.sharing.videos.process import (
    MAX_FRAME_PIXELS,
    MAX_FRAMES,
    AnyVideoForm,
    RefusedVideo,
    VideoAnswer,
    VideoAsk,
    rate_of,
)

# Bytes that this process may allocate: all frames as a model takes them, twice, and what a decoder
# keeps of the largest ones.
MEMORY = 2 << 30
_ADDRESSES = 6 << 30
_CODECS = "h264,hevc,vp8,libvpx,vp9,libvpx-vp9,av1,libdav1d,mpeg4,mjpeg"
_SOUND_CODECS = (
    *("aac", "mp3", "mp3float", "opus", "libopus", "vorbis", "flac", "alac", "ac3", "eac3"),
    *("pcm_s16le", "pcm_s16be", "pcm_s24le", "pcm_s24be", "pcm_s32le", "pcm_f32le", "pcm_u8"),
)
_MOST_CHANNELS = 8
_SOUND_RATES = (4_000, 384_000)
_KINDS = "MP4, MOV, WebM, Matroska or AVI file"
_RIFF_HEAD = 12  # bytes


def _container_of(data: bytes) -> str:
    """Return FFmpeg's name of a file's container. Raises RefusedVideo."""
    if data[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"):
        return "mov"
    if data.startswith(b"\x1a\x45\xdf\xa3"):
        return "matroska"
    if data.startswith(b"RIFF") and data[8:_RIFF_HEAD] == b"AVI ":
        return "avi"
    raise RefusedVideo(f"is not a {_KINDS}")


def prepared(data: bytes, form: AnyVideoForm, seconds: int = 0) -> VideoAnswer:
    """Return the frames of a video that a model takes, with at most so many seconds of sound.

    seconds: 0: without its sound. Raises RefusedVideo, MemoryError.
    """
    if not data:
        raise RefusedVideo(f"is empty: send the bytes of a {_KINDS}")
    kind = _container_of(data)
    try:
        total, rate = _counted(data, kind)
        indices = form.indices(total, rate)
        made = _made(_frames(data, kind, indices), indices, total, rate, form)
        return replace(made, samples=_heard(data, kind, seconds)) if seconds else made
    except (RefusedVideo, MemoryError):
        raise
    except av.error.DecoderNotFoundError:
        raise RefusedVideo(f"has a codec that is not decoded here: send one of {_CODECS}") from None
    except Exception as exc:  # whatever a damaged file leads to
        raise RefusedVideo(f"cannot be decoded, because the file is damaged: {exc}") from exc


def _of_images(images: Sequence[bytes], form: AnyVideoForm) -> VideoAnswer:
    """Return the frames that a client sent as images. Raises RefusedVideo, MemoryError."""
    indices, rate = form.all_indices(len(images)), rate_of(None)
    return _made(_decoded(images), indices, len(images), rate, form)


def _decoded(images: Sequence[bytes]) -> Iterator[Image.Image]:
    """Yield frames that were sent as images. Raises RefusedVideo."""
    size: tuple[int, int] | None = None
    for number, each in enumerate(images):
        try:
            image = decoded(each)
        except RefusedImage as exc:
            raise RefusedVideo(f"has a frame, number {number + 1}, that {exc}") from exc
        size = size or image.size
        if image.size != size:
            raise RefusedVideo(
                f"has frames of {size} and, number {number + 1}, of {image.size} pixels: send them "
                "in one size"
            )
        yield image


def _made(
    frames: Iterator[Image.Image], indices: list[int], total: int, rate: float, form: AnyVideoForm
) -> VideoAnswer:
    """Return frames as a model takes them. indices: of each of them, among `total`."""
    pieces, fit = list[bytes](), ImageFit((0, 0), (0, 0, 0, 0))
    for image in frames:
        if not pieces:
            fit = form.fit(*image.size, len(indices))
        made = image.resize(fit.resized, Image.Resampling(form.resample)).crop(fit.box)
        pieces.append(made.tobytes())
    if len(pieces) < len(indices):
        raise RefusedVideo(
            f"is damaged or cut off: of its {total} frames, number {indices[len(pieces)] + 1} "
            "cannot be decoded"
        )
    width, height = fit.size
    return VideoAnswer(
        "frames",
        b"".join(pieces),
        height=height,
        width=width,
        indices=tuple(indices),
        rate=rate,
        total=total,
    )


def _counted(data: bytes, kind: str) -> tuple[int, float]:
    """Return a video's frames, and how many it has a second, before any is decoded.

    What the file holds is counted, whatever its header says. Raises RefusedVideo.
    """
    with _opened(data, kind) as container:
        stream = _stream(container)
        total = 0
        for packet in container.demux(stream):
            total += packet.size > 0
            if total > MAX_FRAMES:
                raise RefusedVideo(f"has more than {MAX_FRAMES} frames: send a shorter part of it")
        if stream.frames > total:
            raise RefusedVideo(
                f"is cut off: its header promises {stream.frames} frames and {total} are there"
            )
        rate = stream.average_rate
        return total, rate_of(None if rate is None else float(rate))


def _frames(data: bytes, kind: str, indices: list[int]) -> Iterator[Image.Image]:
    """Yield the frames with these numbers, upright."""
    with _opened(data, kind) as container:
        wanted = iter(indices)
        number = next(wanted)
        for index, frame in enumerate(container.decode(_stream(container))):
            while index == number:
                image = frame.to_image()
                turned = frame.rotation % 360  # against the clock, as Pillow counts
                yield image.rotate(turned, expand=True) if turned else image
                number = next(wanted, -1)
            if number < 0:
                return


def _heard(data: bytes, kind: str, seconds: int) -> bytes:
    """Return the samples f32[n] of a video's sound. Raises RefusedVideo."""
    with _opened(data, kind, ",".join(_SOUND_CODECS)) as container:
        # msgspec writes any buffer as bytes, so that no copy is made.
        return cast("bytes", _samples(container, seconds).data.cast("B"))


def _samples(container: Any, seconds: int) -> np.ndarray:
    """Return f32[n] of a video's sound. seconds: of the longest that is taken.

    Its first sample counts as the video's beginning, as in transformers. Raises RefusedVideo.
    """
    stream = container.streams.best("audio")
    if stream is None:
        raise RefusedVideo(
            "has no sound, and use_audio_in_video asks for it: leave that out, or send a video "
            "that has one"
        )
    codec = stream.codec_context.codec.name
    if codec not in _SOUND_CODECS:
        raise RefusedVideo(
            f"has a sound of the codec {codec}, which is not decoded here: send AAC, MP3, Opus, "
            "Vorbis, FLAC, ALAC, AC-3 or PCM"
        )
    stream.thread_count = 1
    pieces = [*_resampled(container.decode(stream), seconds)]
    samples = np.concatenate(pieces) if pieces else np.empty(0, np.float32)
    if not len(samples):
        raise RefusedVideo("has a sound without samples: leave use_audio_in_video out")
    if not np.isfinite(samples.sum(dtype=np.float64)):
        raise RefusedVideo("has a sound with samples that are no finite numbers")
    return samples


def _resampled(frames: Iterator[Any], seconds: int) -> Iterator[np.ndarray]:
    """Yield the mixed sound piece by piece. Raises RefusedVideo for more than so many seconds."""
    planes = av.AudioResampler(format="fltp")
    resampler: Resampler | None = None
    read = 0
    for frame in frames:
        if resampler is None:
            _check_sound(frame.sample_rate, len(frame.layout.channels))
            resampler = Resampler(frame.sample_rate, RATE)
        read += frame.samples
        if read > seconds * frame.sample_rate:
            raise RefusedVideo(
                f"has a sound of more than {seconds} s, which is what this model takes: send a "
                "shorter part of it, or leave use_audio_in_video out"
            )
        for each in planes.resample(frame):
            yield resampler.feed(each.to_ndarray().mean(0, dtype=np.float32))
    if resampler is not None:
        for each in planes.resample(None):
            yield resampler.feed(each.to_ndarray().mean(0, dtype=np.float32))
        yield resampler.flush()


def _check_sound(rate: int, channels: int) -> None:
    if channels > _MOST_CHANNELS:
        raise RefusedVideo(
            f"has a sound of {channels} channels: at most {_MOST_CHANNELS} are mixed"
        )
    if not _SOUND_RATES[0] <= rate <= _SOUND_RATES[1]:
        raise RefusedVideo(
            f"has a sound of {rate} samples a second: from {_SOUND_RATES[0]} to {_SOUND_RATES[1]} "
            "are taken"
        )


def _opened(data: bytes, kind: str, codecs: str = _CODECS) -> Any:
    options = {"codec_whitelist": codecs, "enable_drefs": "0"}
    if kind != "mov":
        del options["enable_drefs"]
    return av.open(BytesIO(data), format=kind, options=options, metadata_errors="ignore")


def _stream(container: Any) -> Any:
    """Return the first video stream, to be decoded by one thread. Raises RefusedVideo."""
    if not container.streams.video:
        raise RefusedVideo("has no pictures: send a sound as one")
    stream = container.streams.video[0]
    width, height = stream.codec_context.width, stream.codec_context.height
    if not 0 < width * height <= MAX_FRAME_PIXELS:
        raise RefusedVideo(
            f"has frames of {width} x {height} pixels: at most {MAX_FRAME_PIXELS} are decoded"
        )
    stream.thread_count = 1
    return stream


def answer(ask: VideoAsk) -> VideoAnswer:
    try:
        if ask.images is None:
            return prepared(ask.video, ask.form, ask.seconds)
        if ask.seconds:
            raise RefusedVideo("is a list of images, which has no sound: leave that out")
        return _of_images(ask.images, ask.form)
    except RefusedVideo as exc:
        return VideoAnswer("refused", text=str(exc))
    except MemoryError:
        return VideoAnswer(
            "runaway", text=f"needs more than {MEMORY >> 20} MiB: send a smaller one"
        )


def main() -> None:
    confine(MEMORY, _ADDRESSES)
    # Decoders write remarks on what strangers sent, which would fill the server's log.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    decoder, encode = msgspec.msgpack.Decoder(VideoAsk), msgspec.msgpack.encode
    run(lambda frame: framed(encode(answer(decoder.decode(frame)))))


if __name__ == "__main__":
    main()
