"""Images of a request, from files: the option --image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sax.chat import Content, Image
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


def with_images(text: str, files: Sequence[Path] | None) -> Content:
    """Return a message's content: images come before the text. Raises InvalidRequest for a file
    that cannot be read."""
    images = [Image(_read(file), str(file)) for file in files or ()]
    return (*images, text) if images else text


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as exc:
        raise InvalidRequest(
            f"{quoted(str(file))} cannot be read: {exc.strerror}", param="image"
        ) from exc
