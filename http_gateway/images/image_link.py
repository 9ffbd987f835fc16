"""Images, sounds and videos as bodies give them: in a data URL, at a URL, or as base64."""

from __future__ import annotations

import binascii
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from http_gateway.openapi import Schema
from sax.chat import Content, Image, Sound, Video
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import RequestField, RequestRoute
from sax.fields.table import field
from sax.format import quoted

MEDIA_TYPES = ("image/jpeg", "image/png", "image/webp")
DETAILS = ("auto", "high")  # values of OpenAI's `detail` that change nothing
_PIECE = 1 << 19  # characters, a multiple of four
_SHOWN = 40  # characters of a URL's beginning in errors


@dataclass(frozen=True, slots=True)
class ImageLink(Image):
    """An image that is still to be read; `data` is empty."""

    example: ClassVar[str] = "data:image/png;base64,..."

    url: str = ""  # http, https or data

    @property
    def accepted(self) -> str:
        """The media types to ask a host for."""
        return "image/*"

    @property
    def wanted(self) -> str:
        """The beginning of data URLs that are taken, for errors."""
        return "data:image/jpeg;base64,..., or image/png or image/webp"

    def takes(self, media_type: str) -> bool:
        """Return True for a media type that its data URL may have."""
        return media_type.replace("jpg", "jpeg") in MEDIA_TYPES

    def made(self, data: bytes) -> Image:
        """Return the image of these bytes."""
        return Image(data, self.name)

    def made_of(self, media_type: str, text: str) -> Image:
        """Return the image of a base64 text. Raises ValueError."""
        return self.made(_bytes_of(text))


def read_url(
    url: object, at: str, name: str, row: RequestField, kind: type[ImageLink] | None = None
) -> ImageLink:
    """Return the image of a URL. at: path of the URL; name: path of the image. kind: None: an
    image; else of what it is.

    Raises InvalidRequest for a text that is neither a data URL of an image nor an http one.
    """
    made = ImageLink if kind is None else kind
    if not isinstance(url, str):
        raise InvalidRequest(f"{at}: send a URL", param=at)
    row.check_text(url, at)
    if not url.startswith(("data:", "http://", "https://")):
        raise InvalidRequest(
            f"{at} is {quoted(url[:_SHOWN])}: send a data URL, as in "
            f"{made.example}, or one of http or https",
            param=at,
        )
    return made(b"", name, url)


def read_base64(
    data: object, media_type: object, at: str, name: str, row: RequestField
) -> ImageLink:
    """Return the image of a base64 text. Raises InvalidRequest."""
    if not isinstance(data, str):
        raise InvalidRequest(f"{at}: send the image as base64", param=at)
    row.check_text(data, at)
    if media_type not in MEDIA_TYPES:
        raise InvalidRequest(
            f"{name} has the media type {quoted(media_type)}: send {', '.join(MEDIA_TYPES)}",
            param=name,
        )
    return ImageLink(b"", name, f"data:{media_type};base64,{data}")


def joined(parts: Sequence[str | Image]) -> Content:
    """Return parts as a message's content: one text, if there are no images."""
    texts = [part for part in parts if isinstance(part, str)]
    return "\n".join(texts) if len(texts) == len(parts) else tuple(parts)


def check_detail(value: object, at: str) -> None:
    """Raise UnsupportedParameter for a `detail` that would change what a model sees."""
    if value is not None and value not in DETAILS:
        raise UnsupportedParameter(
            f"{at} {quoted(value)} is not supported: images are read at the size that the model "
            f"was trained for; send {' or '.join(DETAILS)}, or leave it out",
            param=at,
        )


def decoded(link: ImageLink) -> Image:
    """Return the image or sound of a data URL. Raises InvalidRequest."""
    head, comma, text = link.url.partition(",")
    kind, *options = head.removeprefix("data:").split(";")
    if not comma or options != ["base64"] or not link.takes(kind):
        raise InvalidRequest(
            f"{link.name} begins with {quoted(link.url[:_SHOWN])}: send {link.wanted}",
            param=link.name,
        )
    try:
        return link.made_of(kind, text)
    except (binascii.Error, ValueError) as exc:
        raise InvalidRequest(f"{link.name} is damaged base64: {exc}", param=link.name) from exc


def _bytes_of(text: str) -> bytes:
    """Decode base64. Raises ValueError."""
    return b"".join(_pieces(text))


def _pieces(text: str) -> Iterator[bytes]:
    """Decode base64 in pieces of a millisecond or two: other threads wait for each of them."""
    for start in range(0, len(text), _PIECE):
        piece = text[start : start + _PIECE]
        if start + _PIECE < len(text) and "=" in piece:
            raise ValueError("it ends before its end")
        yield binascii.a2b_base64(piece, strict_mode=True)


# The decoder looks at the file itself: the name is checked so that others are refused early.
SOUND_FORMATS = ("wav", "mp3", "flac", "ogg", "opus")


@dataclass(frozen=True, slots=True)
class SoundLink(ImageLink):
    """A sound that is still to be decoded; `data` is empty and `url` a data URL."""

    def takes(self, media_type: str) -> bool:
        return True  # `read_sound` wrote it

    def made(self, data: bytes) -> Sound:
        return Sound(data, self.name)


def read_sound(data: object, form: object, at: str, name: str, row: RequestField) -> SoundLink:
    """Return the sound of a base64 text. at: path of the object; name: path of the part.

    Raises InvalidRequest.
    """
    if not isinstance(data, str):
        raise InvalidRequest(f"{at}.data: send the sound as base64", param=f"{at}.data")
    row.check_text(data, f"{at}.data")
    if form not in SOUND_FORMATS:
        raise InvalidRequest(
            f"{at}.format is {quoted(form)}: send {', '.join(SOUND_FORMATS)}", param=f"{at}.format"
        )
    return SoundLink(b"", name, f"data:audio/{form};base64,{data}")


VIDEO_TYPES = (
    *("video/mp4", "video/quicktime", "video/webm"),
    *("video/x-matroska", "video/x-msvideo", "video/avi"),
)
FRAMES_TYPE = "video/jpeg"  # base64 of JPEG files with commas between them, as vLLM takes it


@dataclass(frozen=True, slots=True)
class VideoLink(ImageLink):
    """A video that is still to be read; `data` is empty."""

    example: ClassVar[str] = "data:video/mp4;base64,..."
    heard: bool = False  # as of Video

    @property
    def accepted(self) -> str:
        return "video/*"

    @property
    def wanted(self) -> str:
        return f"{self.example}, or {', '.join((*VIDEO_TYPES[1:], FRAMES_TYPE))}"

    def takes(self, media_type: str) -> bool:
        return media_type in (*VIDEO_TYPES, FRAMES_TYPE)

    def made(self, data: bytes) -> Video:
        return Video(data, self.name, heard=self.heard)

    def made_of(self, media_type: str, text: str) -> Video:
        if media_type != FRAMES_TYPE:
            return self.made(_bytes_of(text))
        frames = Video.of_frames(map(_bytes_of, text.split(",")), self.name)
        return replace(frames, heard=self.heard)


_BASE64 = "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
DETAIL: Schema = {"enum": [None, *DETAILS]}


def base64_schema(route: RequestRoute, name: str) -> Schema:
    return {"type": "string", "pattern": f"^{_BASE64}$", "maxLength": field(route, name).bytes}


def url_schema(
    route: RequestRoute, name: str, types: str = "image/(jpe?g|png|webp)", frames: str = ""
) -> Schema:
    """types: of media, a regular expression; frames: of a list of such files with commas."""
    several = f"|data:{frames};base64,{_BASE64}(,{_BASE64})*" if frames else ""
    return {
        "type": "string",
        "pattern": f"^(data:{types};base64,{_BASE64}{several})$",
        "maxLength": field(route, name).bytes,
        "description": "Or an http or https URL of a host in the gateway's --media_hosts.",
    }
