"""Decodes videos in processes of their own, so that no video can hold up the server or break it."""

from __future__ import annotations

import importlib.util
from concurrent.futures import Future
from functools import cache

import numpy as np

from model_server.loading.images.decoders import LANES, WAITING, DecodingLanes, InputKind
from model_server.models.media.media_recipe import DecodedVideo
from model_server.sharing.videos.process import AnyVideoForm, VideoAnswer, VideoAsk, VideoProcess
from sax.chat import frames_in
from sax.distribution import how_to_install
from sax.errors import InvalidRequest


def _read(_: VideoAsk, answer: VideoAnswer) -> DecodedVideo:
    frames = np.frombuffer(answer.frames, np.uint8)
    frames = frames.reshape(-1, answer.height, answer.width, 3)
    return DecodedVideo(frames, answer.indices, answer.rate, answer.total)


_VIDEOS = InputKind(name="video", param="messages", retry_s=2.0, process=VideoProcess, read=_read)


class VideoDecoder:
    """Thread-safe. Its processes start with the first videos and end with this one."""

    def __init__(self, lanes: int = LANES, waiting: int = WAITING) -> None:
        """waiting: bytes of videos that may wait."""
        self._lanes = DecodingLanes(_VIDEOS, lanes, waiting)

    def submit(self, video: bytes, form: AnyVideoForm) -> Future[DecodedVideo]:
        """Decode a video. Raises QueueFull, and InvalidRequest for torn images; the future raises
        InvalidRequest for a bad video, and Unavailable.
        """
        return self._lanes.submit(_ask(video, form), len(video))


def _ask(video: bytes, form: AnyVideoForm) -> VideoAsk:
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
