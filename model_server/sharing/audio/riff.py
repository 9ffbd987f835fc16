"""Gives WAV files the lengths that those who wrote into a pipe could not know.

Source: RIFF (IBM and Microsoft 1991) and RF64 (EBU Tech 3306), whose lengths are numbers of 64 bits
in a chunk of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from model_server.sharing.audio.mp3 import mp3_files
from model_server.sharing.audio.process import RefusedSound

NAMES = (b"RIFF", b"RF64")
# Lengths that stand for an unknown one: 0, and from 2 GiB less a header on, as programs differ.
_UNKNOWN = (1 << 31) - (1 << 16)
_MOST_JUNK = 4096  # bytes after a sound that say nothing
_LONG = (1 << 32) - 1  # a length that is in another chunk
_MP3 = 0x55  # the format of samples


class _Chunk(NamedTuple):
    name: bytes
    start: int  # of what it holds
    size: int  # bytes, as its header says

    @property
    def end(self) -> int:
        return self.start + self.size + self.size % 2


def wave_files(data: bytes) -> Iterator[bytes]:
    """Yield the WAV files of which `data` is made; MP3s instead of those that hold one.

    Raises RefusedSound for a file that is shorter than it says.
    """
    start = 0
    while data.startswith(NAMES, start):
        end, files = _wave(data, start)
        yield from files
        start = end
    if len(data) - start > _MOST_JUNK:
        raise RefusedSound(
            f"has {len(data) - start} bytes after the end that its header tells: write it again "
            "with the right length"
        )


def _wave(data: bytes, start: int) -> tuple[int, Iterator[bytes]]:
    """Return where a file ends, and the file."""
    before: dict[bytes, _Chunk] = {}
    for chunk in _chunks(data, start + 12):
        if chunk.name == b"data":
            samples = _samples(data, start, chunk, before.get(b"ds64"))
            files = _files(data, start, samples, before.get(b"fmt "))
            return _end(data, samples.stop), files
        before[chunk.name] = chunk
    return len(data), iter([data[start:]])


def _samples(data: bytes, start: int, chunk: _Chunk, long: _Chunk | None) -> slice:
    """Return where samples are; if nobody says how many, all that follows. Raises RefusedSound."""
    told, whole = chunk.size, int.from_bytes(data[start + 4 : start + 8], "little")
    if long and told == _LONG:
        told = int.from_bytes(data[long.start + 8 : long.start + 16], "little")
    ends_after = chunk.start - start < whole + 8 < _UNKNOWN  # then other chunks follow none
    if told >= _UNKNOWN or (told == 0 and not ends_after):
        told = 0 if data.startswith(NAMES, chunk.start) else len(data) - chunk.start
    promised = max(whole if whole < _UNKNOWN else 0, chunk.start + told - start)
    if len(data) - start < promised:
        raise RefusedSound(
            f"is cut off: its header promises {promised} bytes and the file has {len(data) - start}"
        )
    return slice(chunk.start, chunk.start + told)


def _end(data: bytes, end: int) -> int:
    """Return where the chunks after the samples end; some programs write no byte of padding."""
    at = end if data.startswith(NAMES, end) else end + end % 2
    for chunk in _chunks(data, at):
        named = all(32 <= letter < 127 for letter in chunk.name)
        if chunk.name in NAMES or not named or chunk.end > len(data) + 1:
            break
        at = chunk.end
    return min(at, len(data))


def _files(data: bytes, start: int, samples: slice, kind: _Chunk | None) -> Iterator[bytes]:
    """Yield the file of samples, without what came after them."""
    if kind and int.from_bytes(data[kind.start : kind.start + 2], "little") == _MP3:
        yield from mp3_files(data[samples])
        return
    # The lengths of an RF64 count no longer.
    head = data[start + 8 : samples.start - 4].replace(b"WAVEds64", b"WAVEJUNK", 1)
    whole, size = (samples.stop - each for each in (start + 8, samples.start))
    yield b"RIFF" + whole.to_bytes(4, "little") + head + size.to_bytes(4, "little") + data[samples]


def _chunks(data: bytes, at: int) -> Iterator[_Chunk]:
    while at + 8 <= len(data):
        chunk = _Chunk(data[at : at + 4], at + 8, int.from_bytes(data[at + 4 : at + 8], "little"))
        yield chunk
        at = chunk.end
