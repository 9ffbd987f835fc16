"""Finds where sounds end that say it wrongly: frames of MP3 files, lengths of WAV files.

libsndfile decodes as many samples as the first frame of an MP3 says (a Xing or Info tag, which
encoders write there), or as its bit rate lets one guess; and the first of several files that were
joined. A WAV file gets the length that those who wrote into a pipe could not know. Source: RIFF
(IBM and Microsoft 1991) and RF64 (EBU Tech 3306), whose lengths are numbers of 64 bits in a chunk.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from model_server.sharing.audio.process import RefusedSound

_I = tuple(range(0, 449, 32))  # thousands of bits a second, by the number in the header
_II = (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384)
_III = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_LATER_I = (0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256)
_LATER = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_HERTZ = (44_100, 48_000, 32_000)
_DIVISOR = {3: 1, 2: 2, 0: 4}  # of these, by the version's number: MPEG 1, 2 and 2.5
_MOST_JUNK = 1024  # bytes between frames that decoders step over
_COUNTED = 1  # flag of a tag that says how many frames follow
NAMES = (b"RIFF", b"RF64")
# Lengths that stand for an unknown one: 0, and from 2 GiB less a header on, as programs differ.
_UNKNOWN = (1 << 31) - (1 << 16)
_MOST_JUNK_OF_WAVES = 4096  # bytes after a sound that say nothing
_LONG = (1 << 32) - 1  # a length that is in another chunk
_MP3 = 0x55  # the format of samples


class _Mp3Frame(NamedTuple):
    start: int
    size: int  # bytes
    kind: tuple[int, int, int, bool]  # version, layer, number of the rate, one channel

    @property
    def sides(self) -> int:
        """Bytes between a header and a tag: what a frame of silence has there."""
        first, mono = self.kind[0] == 3, self.kind[3]
        return (17 if mono else 32) if first else (9 if mono else 17)


def mp3_files(data: bytes) -> Iterator[bytes]:
    """Yield the MP3 files of which `data` is made, each with its number of frames.

    What does not begin with a frame is yielded as it is. Raises RefusedSound.
    """
    files: list[list[_Mp3Frame]] = []
    for frame in _frames(data):
        if not files or frame.kind != files[-1][0].kind or _tag(data, frame) is not None:
            files.append([])
        files[-1].append(frame)
    if not files:
        yield data
    for frames in files:
        yield _counted(data, frames)


def _counted(data: bytes, frames: list[_Mp3Frame]) -> bytes:
    """Return the bytes of frames, the first of which says how many follow."""
    first = frames[0]
    tag = _tag(data, first)
    if tag is not None:
        told, found = _told(data, tag), len(frames) - 1
        if told > found + 1:  # some encoders count the frame of the tag, too
            raise RefusedSound(
                f"is cut off: its header promises {told} frames and the file has {found}"
            )
        if told == found:
            return b"".join(data[start : start + size] for start, size, _ in frames)
        frames = frames[1:]
    sound = b"".join(data[start : start + size] for start, size, _ in frames)
    return _tag_frame(data, first, len(frames)) + sound if first.kind[1] == 1 else sound


def _tag_frame(data: bytes, like: _Mp3Frame, count: int) -> bytes:
    """Return a silent frame whose tag says that `count` frames follow."""
    header = bytearray(data[like.start : like.start + 4])
    header[1] |= 1  # without a checksum
    header[2] = 9 << 4 | header[2] & 0b1100  # 80 thousand bits a second or more hold a tag
    found = _frame(header, 0)
    assert found is not None
    tag = bytes(found.sides) + b"Info" + struct.pack(">II", _COUNTED, count)
    return bytes(header + tag).ljust(found.size, b"\0")


def _tag(data: bytes, frame: _Mp3Frame) -> int | None:
    """Return where the tag of a frame is, if it has one."""
    checksum = 0 if data[frame.start + 1] & 1 else 2
    at = frame.start + 4 + frame.sides
    places = (at, at + checksum) if frame.kind[1] == 1 else ()
    return next((place for place in places if data[place : place + 4] in (b"Xing", b"Info")), None)


def _told(data: bytes, tag: int) -> int:
    flags, count = struct.unpack(">II", data[tag + 4 : tag + 12])
    return count if flags & _COUNTED else 0


def _frames(data: bytes) -> Iterator[_Mp3Frame]:
    """Yield whole frames, the first of which begins the file but for tags. Raises RefusedSound."""
    at, last = after_tags(data, 0), None
    while frame := _found(data, at, last):
        if frame.start + frame.size > len(data):
            return
        yield frame
        at, last = after_tags(data, frame.start + frame.size), frame
    if last is not None and len(data) - at > _MOST_JUNK:
        raise RefusedSound(f"is damaged: from byte {at} on there are no frames of an MP3")


def _found(data: bytes, at: int, last: _Mp3Frame | None) -> _Mp3Frame | None:
    """Return the frame at a byte, or after junk the next one that its like follows."""
    frame = _frame(data, at)
    if last is None or (frame and frame.kind == last.kind):
        return frame
    most = at + _MOST_JUNK
    while at >= 0:
        frame = _frame(data, at)
        follower = frame and _frame(data, frame.start + frame.size)
        if frame and follower and frame.kind == follower.kind:
            return frame
        at = data.find(b"\xff", at + 1, most + 1)
    return None


def _frame(data: bytes | bytearray, at: int) -> _Mp3Frame | None:
    """Return the frame that begins at a byte, if its header is one; of free formats none is."""
    if len(data) < at + 4 or data[at] != 0xFF or data[at + 1] & 0xE0 != 0xE0:
        return None
    version, layer = data[at + 1] >> 3 & 3, data[at + 1] >> 1 & 3  # layer: 3 is I, 1 is III
    bits, rate, padded = data[at + 2] >> 4, data[at + 2] >> 2 & 3, data[at + 2] >> 1 & 1
    if version == 1 or layer == 0 or bits in (0, 15) or rate == 3:
        return None
    first = version == 3
    rates = ((_III, _II, _I) if first else (_LATER, _LATER, _LATER_I))[layer - 1]
    hertz = _HERTZ[rate] // _DIVISOR[version]
    if layer == 3:
        size = (12_000 * rates[bits] // hertz + padded) * 4
    else:
        size = (144_000 if first or layer == 2 else 72_000) * rates[bits] // hertz + padded
    return _Mp3Frame(at, size, (version, layer, rate, data[at + 3] >> 6 == 3))


def after_tags(data: bytes, at: int) -> int:
    """Return where the tags that begin at a byte end: ID3 of either version, and APE."""
    while size := _tag_size(data[at : at + 16]):
        at += size
    return min(at, len(data))


def _tag_size(head: bytes) -> int:
    if len(head) < 16:
        return 0
    if head.startswith(b"ID3"):
        high, *lower = head[6:10]
        size = high
        for seven in lower:
            size = size << 7 | seven & 0x7F
        return 10 + size + (10 if head[5] & 0x10 else 0)
    if head.startswith(b"TAG"):
        return 227 if head.startswith(b"TAG+") else 128
    if head.startswith(b"APETAGEX"):
        return 32 + int.from_bytes(head[12:16], "little")
    return 0


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
    if len(data) - start > _MOST_JUNK_OF_WAVES:
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
