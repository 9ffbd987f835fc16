"""Small videos as files, written with PyAV."""

from __future__ import annotations

import io
from typing import Any

import av
import numpy as np


def video_file(
    frames: int = 30,
    *,
    width: int = 64,
    height: int = 48,
    rate: int = 10,
    codec: str = "mpeg4",
    kind: str = "mp4",
    pixels: str = "yuv420p",
    sound: np.ndarray | None = None,
    sound_codec: str = "pcm_s16le",
    sound_rate: int = 16_000,
) -> bytes:
    """Frames of one grey each, a little lighter than the one before, from black to white.

    sound: i16[n] or i16[channels, n]; None: there is none.
    """
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, pixels
        heard = None if sound is None else _heard(container, sound_codec, sound_rate, sound.ndim)
        for number in range(frames):
            grey = 255 * number // max(1, frames - 1)
            made = np.full((height, width, 3), grey, np.uint8)
            frame = av.VideoFrame.from_ndarray(made, format="rgb24")
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
        if heard is not None and sound is not None and sound.size:
            _mux(container, heard, np.atleast_2d(sound), sound_rate)
    return file.getvalue()


def _heard(container: Any, codec: str, rate: int, channels: int) -> Any:
    stream = container.add_stream(codec, rate=rate)
    stream.codec_context.layout = ("mono", "stereo")[channels - 1]
    return stream


def _mux(container: Any, stream: Any, samples: np.ndarray, rate: int) -> None:
    layout = ("mono", "stereo")[len(samples) - 1]
    woven = np.ascontiguousarray(samples.T.reshape(1, -1))
    frame = av.AudioFrame.from_ndarray(woven, format="s16", layout=layout)
    frame.sample_rate = rate
    frame.pts = 0
    for each in (frame, None):
        for packet in stream.encode(each):
            container.mux(packet)
