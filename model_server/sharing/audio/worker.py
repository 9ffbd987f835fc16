"""The process that decodes sounds, within limits of time and memory.

    python -m model_server.sharing.audio.worker SECONDS NICENESS

Reads requests from standard input and writes answers to standard output until the input ends.

Sounds are decoded with libsndfile and brought into a model's form.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import cast

import msgspec
import numpy as np
import soundfile

from model_server.sharing.audio import sound_files
from model_server.sharing.audio.process import (
    HOP,
    RATE,
    RefusedSound,
    SoundAnswer,
    SoundAsk,
    SoundForm,
)
from model_server.sharing.audio.resampler import Resampler
from model_server.sharing.audio.sound_files import after_tags, mp3_files
from model_server.sharing.audio.spectrogram import spectrogram
from model_server.sharing.confined.limits import confine, run
from model_server.sharing.confined.pipe import framed

# Bytes that this process may allocate: two hours are 460 MB of samples, once more with mirrored
# ends, and 370 MB of spectrogram of 128 bins; then that twice more in the answer.
MEMORY = 2 << 30
_ADDRESSES = 6 << 30


_FLAC = re.compile(rb"fLaC[\x00\x80]\x00\x00\x22")  # and the head of its first block
_OGG = b"OggS"
_FIRST = 2  # flag of an Ogg page that begins a stream
_SEGMENTS = 26  # where the head of an Ogg page has their number

_FORMATS = ("WAV", "WAVEX", "RF64", "FLAC", "MP3", "OGG")
_NAMED = "WAV, FLAC, MP3 or Ogg (Vorbis or Opus) file"
_MOST_CHANNELS = 8
_RATES = (4_000, 384_000)
_BLOCK = 1 << 18  # frames that are decoded together
_UNKNOWN = (1 << 63) - 1  # what libsndfile says of frames that it cannot count
_MOST_LEFT = 1 << 13  # bytes that decoders leave: libFLAC reads so many at a time
_MINUTE = 60
_LEAST = 400  # samples that make a spectrogram


def _prepared(data: bytes, form: SoundForm) -> tuple[np.ndarray, int]:
    """Return the spectrogram f32[frames, bins] of an encoded sound and its samples at 16 kHz; or,
    if the form has no bins, the samples f32[n] themselves.

    Raises RefusedSound, MemoryError.
    """
    samples = decoded(data, form)
    if not form.bins:
        return samples, len(samples)
    count, least = len(samples), max(_LEAST, form.least_frames * HOP)
    if count < least:  # long ones are not copied: they take hundreds of megabytes
        samples = np.pad(samples, (0, least - count))
    return spectrogram(samples, form.bins), count


def decoded(data: bytes, form: SoundForm) -> np.ndarray:
    """Return a sound's samples f32[N], mono at 16 kHz. Raises RefusedSound, MemoryError."""
    if not data:
        raise RefusedSound(f"is empty: send the bytes of a {_NAMED}")
    try:
        samples = np.concatenate([*_resampled(data, form)])
    except (RefusedSound, MemoryError):
        raise
    except soundfile.LibsndfileError as exc:
        raise RefusedSound(f"is not a {_NAMED}, or is damaged: {exc.error_string}") from None
    except Exception as exc:  # whatever a damaged file leads to
        raise RefusedSound(f"cannot be decoded, because the file is damaged: {exc}") from exc
    if not len(samples):
        raise RefusedSound("has no samples, or is cut off before them")
    if not np.isfinite(samples.sum(dtype=np.float64)):  # files of floating-point numbers
        raise RefusedSound("has samples that are no finite numbers")
    return samples


class _Forwards(soundfile.SoundFile):
    """A file that is read once, so that one whose length is unknown can be read."""

    def seekable(self) -> bool:
        return False


def _resampled(data: bytes, form: SoundForm) -> Iterator[np.ndarray]:
    """Yield the mixed sound piece by piece. Some headers lie about lengths: count, too."""
    seconds = 0.0
    for part in _parts_of(data):
        held = BytesIO(part)
        with _Forwards(held) as file:
            _check(file, seconds, form)
            resampler, read = Resampler(file.samplerate, RATE), 0
            for block in _blocks(file):
                read += len(block)
                if seconds + read / file.samplerate > form.most_seconds:
                    raise RefusedSound(_too_long("more samples than that", form))
                yield resampler.feed(block.mean(1, dtype=np.float32))
            _check_end(file, read, len(part) - held.tell())
            seconds += read / file.samplerate
            yield resampler.flush()


def _blocks(file: soundfile.SoundFile) -> Iterator[np.ndarray]:
    """Yield samples f32[N, channels], and ask for no more than the header tells.

    Of more libsndfile would decode the bytes and drop the samples.
    """
    left = file.frames
    while len(block := file.read(min(_BLOCK, left), dtype="float32", always_2d=True)):
        yield block
        left -= len(block)


def _check(file: soundfile.SoundFile, before: float, form: SoundForm) -> None:
    """Check the header, before a sample is decoded. before: seconds of the parts before it."""
    if file.format not in _FORMATS:
        raise RefusedSound(f"is a {file.format} file: send a {_NAMED}")
    if file.channels > _MOST_CHANNELS:
        raise RefusedSound(f"has {file.channels} channels: at most {_MOST_CHANNELS} are mixed")
    if not _RATES[0] <= file.samplerate <= _RATES[1]:
        raise RefusedSound(
            f"has {file.samplerate} samples a second: send from {_RATES[0]} to {_RATES[1]}"
        )
    seconds = before + file.frames / file.samplerate
    if file.frames != _UNKNOWN and seconds > form.most_seconds:
        raise RefusedSound(_too_long(f"{seconds:,.0f} s", form))


def _check_end(file: soundfile.SoundFile, read: int, left: int) -> None:
    """Check that all was decoded. left: bytes that nobody asked for."""
    if _UNKNOWN != file.frames > read:
        raise RefusedSound(
            f"is cut off: its header promises {file.frames} samples and {read} can be decoded"
        )
    if left > _MOST_LEFT:
        raise RefusedSound(
            f"has {left} bytes after the end that its header tells: write it again with the right "
            "length"
        )


def _too_long(has: str, form: SoundForm) -> str:
    minutes, seconds = divmod(form.most_seconds, _MINUTE)
    most = f"{form.most_seconds} s" if seconds or not minutes else f"{minutes} minutes"
    if not form.bins:  # of a model without the override
        return f"is too long ({has}): this model takes at most {most} of each; send it in parts"
    return (
        f"is too long ({has}): this model takes at most {most} (override MAX_AUDIO_MINUTES); send "
        "it in parts"
    )


def _parts_of(data: bytes) -> Iterable[bytes]:
    """Return the sounds of a file in order, each a file with the right lengths in its header.

    What is of no known kind is returned as it is. Raises RefusedSound.
    """
    if data.startswith(sound_files.NAMES):
        return sound_files.wave_files(data)
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


def answer(ask: SoundAsk) -> SoundAnswer:
    try:
        made, samples = _prepared(ask.sound, ask.form)
        # msgspec writes any buffer as bytes, so that no copy is made.
        return SoundAnswer("spectrogram", cast("bytes", made.data.cast("B")), samples)
    except RefusedSound as exc:
        return SoundAnswer("refused", text=str(exc))
    except MemoryError:
        return SoundAnswer(
            "runaway", text=f"needs more than {MEMORY >> 20} MiB: send a shorter one"
        )


def main() -> None:
    confine(MEMORY, _ADDRESSES)
    # Decoders of MP3 write remarks on what strangers sent, which would fill the server's log.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    decoder, encode = msgspec.msgpack.Decoder(SoundAsk), msgspec.msgpack.encode
    run(lambda frame: framed(encode(answer(decoder.decode(frame)))))


if __name__ == "__main__":
    main()
