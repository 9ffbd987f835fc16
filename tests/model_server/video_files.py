"""Small videos as files, written with PyAV."""

from __future__ import annotations

import io

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
) -> bytes:
    """Frames of one grey each, a little lighter than the one before, from black to white."""
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, pixels
        for number in range(frames):
            grey = 255 * number // max(1, frames - 1)
            made = np.full((height, width, 3), grey, np.uint8)
            frame = av.VideoFrame.from_ndarray(made, format="rgb24")
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return file.getvalue()
