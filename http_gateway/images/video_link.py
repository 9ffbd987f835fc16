"""Videos as bodies give them: in a data URL, or at a URL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from http_gateway.images.image_link import ImageLink, bytes_of
from sax.chat import Video

VIDEO_TYPES = (
    *("video/mp4", "video/quicktime", "video/webm"),
    *("video/x-matroska", "video/x-msvideo", "video/avi"),
)
FRAMES_TYPE = "video/jpeg"  # base64 of JPEG files with commas between them, as vLLM takes it


@dataclass(frozen=True, slots=True)
class VideoLink(ImageLink):
    """A video that is still to be read; `data` is empty."""

    example: ClassVar[str] = "data:video/mp4;base64,..."

    @property
    def accepted(self) -> str:
        return "video/*"

    @property
    def wanted(self) -> str:
        return f"{self.example}, or {', '.join((*VIDEO_TYPES[1:], FRAMES_TYPE))}"

    def takes(self, media_type: str) -> bool:
        return media_type in (*VIDEO_TYPES, FRAMES_TYPE)

    def made(self, data: bytes) -> Video:
        return Video(data, self.name)

    def made_of(self, media_type: str, text: str) -> Video:
        if media_type != FRAMES_TYPE:
            return self.made(bytes_of(text))
        return Video.of_frames(map(bytes_of, text.split(",")), self.name)
