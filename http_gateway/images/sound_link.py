"""Sounds as OpenAI's bodies give them: base64, and the format of the file."""

from __future__ import annotations

from dataclasses import dataclass

from http_gateway.images.image_link import ImageLink
from sax.chat import Sound
from sax.errors import InvalidRequest
from sax.fields.field import RequestField
from sax.format import quoted

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
