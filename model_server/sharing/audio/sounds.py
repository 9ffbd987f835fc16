"""Decodes sounds with libsndfile and brings them into a model's form.

What strangers sent is decoded only in a process with limits of its own (see `worker`).
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO

import numpy as np
import soundfile

from model_server.sharing.audio.frames import HOP, RATE, SoundForm
from model_server.sharing.audio.parts import parts_of
from model_server.sharing.audio.refused_sound import RefusedSound
from model_server.sharing.audio.resampling import Resampler
from model_server.sharing.audio.spectrogram import spectrogram

FORMATS = ("WAV", "WAVEX", "RF64", "FLAC", "MP3", "OGG")
_NAMED = "WAV, FLAC, MP3 or Ogg (Vorbis or Opus) file"
_MOST_CHANNELS = 8
_RATES = (4_000, 384_000)
_BLOCK = 1 << 18  # frames that are decoded together
_UNKNOWN = (1 << 63) - 1  # what libsndfile says of frames that it cannot count
_MOST_LEFT = 1 << 13  # bytes that decoders leave: libFLAC reads so many at a time
_MINUTE = 60
_LEAST = 400  # samples that make a spectrogram


def prepared(data: bytes, form: SoundForm) -> tuple[np.ndarray, int]:
    """Return the spectrogram f32[frames, bins] of an encoded sound and its samples at 16 kHz; or,
    if the form has no bins, the samples f32[n] themselves.

    Raises RefusedSound, MemoryError.
    """
    samples = decoded(data, form.most_seconds)
    if not form.bins:
        return samples, len(samples)
    count, least = len(samples), max(_LEAST, form.least_frames * HOP)
    if count < least:  # long ones are not copied: they take hundreds of megabytes
        samples = np.pad(samples, (0, least - count))
    return spectrogram(samples, form.bins), count


def decoded(data: bytes, most_seconds: int) -> np.ndarray:
    """Return a sound's samples f32[N], mono at 16 kHz. Raises RefusedSound, MemoryError."""
    if not data:
        raise RefusedSound(f"is empty: send the bytes of a {_NAMED}")
    try:
        samples = np.concatenate([*_resampled(data, most_seconds)])
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


def _resampled(data: bytes, most_seconds: int) -> Iterator[np.ndarray]:
    """Yield the mixed sound piece by piece. Some headers lie about lengths: count, too."""
    seconds = 0.0
    for part in parts_of(data):
        held = BytesIO(part)
        with _Forwards(held) as file:
            _check(file, seconds, most_seconds)
            resampler, read = Resampler(file.samplerate, RATE), 0
            for block in _blocks(file):
                read += len(block)
                if seconds + read / file.samplerate > most_seconds:
                    raise RefusedSound(_too_long("more samples than that", most_seconds))
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


def _check(file: soundfile.SoundFile, before: float, most_seconds: int) -> None:
    """Check the header, before a sample is decoded. before: seconds of the parts before it."""
    if file.format not in FORMATS:
        raise RefusedSound(f"is a {file.format} file: send a {_NAMED}")
    if file.channels > _MOST_CHANNELS:
        raise RefusedSound(f"has {file.channels} channels: at most {_MOST_CHANNELS} are mixed")
    if not _RATES[0] <= file.samplerate <= _RATES[1]:
        raise RefusedSound(
            f"has {file.samplerate} samples a second: send from {_RATES[0]} to {_RATES[1]}"
        )
    seconds = before + file.frames / file.samplerate
    if file.frames != _UNKNOWN and seconds > most_seconds:
        raise RefusedSound(_too_long(f"{seconds:,.0f} s", most_seconds))


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


def _too_long(has: str, most_seconds: int) -> str:
    if most_seconds < _MINUTE:  # no model of transcripts has such a bound
        return (
            f"is too long ({has}): this model takes at most {most_seconds} s of each; send it in "
            "parts"
        )
    return (
        f"is too long ({has}): this model takes at most {most_seconds // _MINUTE} minutes "
        "(override MAX_AUDIO_MINUTES); send it in parts"
    )
