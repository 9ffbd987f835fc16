"""Images, sounds and videos of a request, from files: the options --image, --audio, --video."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sax.chat import Content, Image, Sound, Video
from sax.errors import InvalidRequest
from sax.format import quoted

ImageFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--image",
        metavar="FILE",
        help="JPEG, PNG or WebP file that comes before the text; may be given several times.",
    ),
]


SoundFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--audio",
        metavar="FILE",
        help="WAV, FLAC, MP3 or Ogg file that comes before the text; may be given several times.",
    ),
]


VideoFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--video",
        metavar="FILE",
        help="MP4, MOV, WebM, Matroska or AVI file that comes before the text; may be given "
        "several times.",
    ),
]


HearVideos = Annotated[
    bool,
    typer.Option(
        "--audio-in-video",
        "--audio_in_video",
        help="Hear the sound tracks of the videos, too; of models that take both.",
    ),
]


ImageInputs = Annotated[
    list[Path] | None,
    typer.Option(
        "--image",
        metavar="FILE",
        help="JPEG, PNG or WebP file, behind the texts; of a model that sees. May be given several "
        "times.",
    ),
]


def images_of(files: Sequence[Path] | None) -> list[Image]:
    """Return images that are inputs. Raises InvalidRequest for a file that cannot be read."""
    return [Image(_read(file, "image"), str(file)) for file in files or ()]


def with_images(
    text: str,
    files: Sequence[Path] | None,
    sounds: Sequence[Path] | None = None,
    videos: Sequence[Path] | None = None,
    *,
    heard: bool = False,
) -> Content:
    """Return a message's content: media come before the text. heard: sound tracks of videos are.

    Raises InvalidRequest for a file that cannot be read.
    """
    media = [Image(_read(file, "image"), str(file)) for file in files or ()]
    media += [Sound(_read(file, "audio"), str(file)) for file in sounds or ()]
    media += [Video(_read(file, "video"), str(file), heard=heard) for file in videos or ()]
    return (*media, text) if media else text


def _read(file: Path, option: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as exc:
        raise InvalidRequest(
            f"{quoted(str(file))} cannot be read: {exc.strerror}", param=option
        ) from exc
