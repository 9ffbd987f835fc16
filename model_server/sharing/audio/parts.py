"""Takes files apart that are several sounds, one after another: libsndfile reads only the first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from model_server.sharing.audio import riff
from model_server.sharing.audio.mp3 import after_tags, mp3_files

_FLAC = re.compile(rb"fLaC[\x00\x80]\x00\x00\x22")  # and the head of its first block
_OGG = b"OggS"
_FIRST = 2  # flag of an Ogg page that begins a stream
_SEGMENTS = 26  # where the head of an Ogg page has their number


def parts_of(data: bytes) -> Iterable[bytes]:
    """Return the sounds of a file in order, each a file with the right lengths in its header.

    What is of no known kind is returned as it is. Raises RefusedSound.
    """
    if data.startswith(riff.NAMES):
        return riff.wave_files(data)
    sound = after_tags(data, 0)
    if data.startswith(b"fLaC", sound):
        return _between(data, [sound, *(each.start() for each in _FLAC.finditer(data, sound + 1))])
    if data.startswith(_OGG):
        return _between(data, [*_links(data)])
    return mp3_files(data)


def _between(data: bytes, starts: list[int]) -> Iterator[bytes]:
    for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
        yield data[start:end]


def _links(data: bytes) -> Iterator[int]:
    """Yield where each link of a chain of Ogg streams begins: pages that begin streams (RFC 3533).

    Several such pages in a row are streams side by side.
    """
    at, begins = 0, False
    while (at := data.find(_OGG, at)) >= 0 and at + _SEGMENTS < len(data):
        began, begins = begins, bool(data[at + 5] & _FIRST)
        if begins and not began:
            yield at
        sizes = at + _SEGMENTS + 1
        ends = sizes + data[at + _SEGMENTS]
        at = ends + sum(data[sizes:ends])
