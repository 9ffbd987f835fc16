"""Sounds whose headers do not say how long they are, or of several files: decoded to their end."""

from __future__ import annotations

import struct
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import soundfile

from model_server.sharing.audio.process import RefusedSound, SoundForm
from model_server.sharing.audio.resampler import Resampler
from model_server.sharing.audio.worker import decoded
from tests.each_case import each_case

HERE = 16_000  # samples a second
FORM = SoundForm(bins=0, least_frames=0, most_seconds=60)
UNKNOWN = b"\xff" * 4
APE = b"APETAGEX" + struct.pack("<III12x", 2000, 10, 1) + b"by himself"
TAGS = b"ID3\x04\0\0\0\0\0\x06Tagged" + APE


def sound(seconds: float = 2, rate: int = HERE) -> np.ndarray:
    """f64[N]: loud, then nearly silent, so that a bit rate that varies falls."""
    t = np.arange(int(rate * seconds)) / rate
    noise = np.random.default_rng(0).normal(0, 0.3, len(t)) * (t < 0.2)
    return 0.1 * np.sin(2 * np.pi * 300 * t) + noise


def encoded(kind: str, seconds: float = 2, rate: int = HERE, **options: Any) -> bytes:
    into = BytesIO()
    with soundfile.SoundFile(into, "w", rate, 1, format=kind, **options) as file:
        file.write(sound(seconds, rate))
    return into.getvalue()


def seconds_of(data: bytes, most: int = 60) -> float:
    return len(decoded(data, SoundForm(0, 0, most))) / HERE


def put(data: bytes, at: int, what: bytes) -> bytes:
    return data[:at] + what + data[at + len(what) :]


def without_tag(mp3: bytes) -> bytes:
    """Drop the first frame, in which the encoder says how many follow."""
    return mp3[mp3.index(mp3[:2], 2) :]


def flac_told(samples: int, seconds: float = 2) -> bytes:
    whole = encoded("FLAC", seconds)
    at = whole.index(b"fLaC") + 8 + 13  # STREAMINFO's number of samples, 36 bits
    return put(whole, at, bytes([whole[at] & 0xF0]) + struct.pack(">I", samples))


def wav_told(whole: int, samples: int, data: bytes | None = None) -> bytes:
    wav = data or encoded("WAV")
    return put(
        put(wav, 4, struct.pack("<I", whole)), wav.index(b"data") + 4, struct.pack("<I", samples)
    )


def rf64_told(lengths: bytes) -> bytes:
    whole = encoded("RF64")
    return put(whole, whole.index(b"ds64") + 8, lengths)


def wav_of_mp3() -> bytes:
    held = without_tag(encoded("MP3", bitrate_mode="VARIABLE", compression_level=0.5))
    fmt = b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 0x55, 1, HERE, 8000, 1, 0)
    body = fmt + b"data" + struct.pack("<I", len(held)) + held
    return b"RIFF" + struct.pack("<I", len(body)) + body


def joined(kind: str, between: bytes = b"", **options: Any) -> bytes:
    return encoded(kind, 1, **options) + between + encoded(kind, 2, **options)


MP3 = {"bitrate_mode": "VARIABLE", "compression_level": 0.5}
WHOLE: dict[str, tuple[Callable[[], bytes], float]] = {
    "mp3, variable, no tag": (lambda: without_tag(encoded("MP3", **MP3)), 2.05),
    "mp3, constant, no tag": (lambda: without_tag(encoded("MP3", bitrate_mode="CONSTANT")), 2.05),
    "mp3, tag of an earlier end": (lambda: put(encoded("MP3"), 25, b"\0\0\0\x14"), 2.05),
    "mp3, tag without a number": (lambda: put(encoded("MP3"), 21, bytes(4)), 2.05),
    "mp3s": (lambda: joined("MP3"), 3),
    "mp3s with tags between": (lambda: TAGS + joined("MP3", TAGS + b"TAG".ljust(128) + TAGS), 3),
    "mp3s of two rates": (lambda: encoded("MP3", 1, 44_100) + encoded("MP3"), 3),
    "mp3 with some bytes between": (lambda: without_tag(joined("MP3", bytes(300))), 3.05),
    "flac of a pipe": (lambda: flac_told(0), 2),
    "flacs": (lambda: joined("FLAC"), 3),
    "flacs of a pipe": (lambda: TAGS + flac_told(0) + flac_told(0), 4),
    "ogg vorbis": (lambda: joined("OGG", subtype="VORBIS"), 3),
    "ogg opus": (lambda: joined("OGG", subtype="OPUS"), 3),
    "oggs of two rates": (lambda: encoded("OGG", 1, 44_100) + encoded("OGG"), 3),
    "wavs": (lambda: joined("WAV"), 3),
    "wavs with chunks between": (lambda: joined("WAV", b"LIST\x03\0\0\0INF\0"), 3),
    "wav of mp3": (wav_of_mp3, 2.05),
    "rf64": (lambda: joined("RF64"), 3),
    "rf64 of a pipe, 0": (lambda: rf64_told(bytes(24)), 2),
    "rf64 of a pipe, -1": (lambda: rf64_told(UNKNOWN * 6), 2),
    "wav that is empty, and one": (lambda: encoded("WAV", 0) + encoded("WAV"), 2),
    "wav that is empty but for names": (
        lambda: wav_told(48, 0, encoded("WAV", 0) + b"LIST\x04\0\0\0INFO") + encoded("WAV"),
        2,
    ),
}
# What programs write into a pipe: ffmpeg, sox, arecord, and those that write nothing.
PIPED = [(0, 0), (36, 0), (2**32 - 1, 2**32 - 1), (2**32 - 1, 0), (0, 2**32 - 1)]
PIPED += [(0x7FFFF024, 0x7FFFF000), (0x80000024, 0x80000000), (2**31 - 1, 2**31 - 37)]


@each_case("case, made, seconds", [(name, *case) for name, case in WHOLE.items()])
def test_a_sound_is_decoded_to_its_end(
    case: str, made: Callable[[], bytes], seconds: float
) -> None:
    assert seconds_of(made()) == pytest.approx(seconds, abs=0.07 if seconds % 1 else 1e-3)


@each_case("whole, samples", PIPED)
def test_a_wav_of_a_pipe_is_decoded_to_its_end(whole: int, samples: int) -> None:
    assert seconds_of(wav_told(whole, samples)) == 2


def test_a_joined_sound_is_each_of_its_parts() -> None:
    alone = decoded(encoded("FLAC", 1), FORM), decoded(encoded("FLAC"), FORM)
    np.testing.assert_array_equal(decoded(joined("FLAC"), FORM), np.concatenate(alone))


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "long together": (lambda: joined("WAV") * 21, r"is too long \(61 s\)"),
    "long of a pipe": (lambda: flac_told(0) * 31, "is too long"),
    "second cut": (lambda: joined("WAV")[:-3], "is cut off"),
    "second mp3 cut": (lambda: joined("MP3")[:-2000], "is cut off"),
    "second flac cut": (lambda: joined("FLAC")[:-2000], "is cut off|is damaged"),
    "wav with samples cut": (lambda: wav_told(0, 64_000)[:-3], "is cut off"),
    "rf64 cut": (lambda: encoded("RF64")[:-3], "is cut off"),
    "mp3 with a hole": (lambda: joined("MP3", bytes(3000)), "from byte .* no frames"),
    "flac that says less": (
        lambda: flac_told(9000, 9),
        "bytes after the end that its header tells",
    ),
    "wav that says less": (lambda: wav_told(9036, 9000), "bytes after the end"),
}


@each_case("case, made, words", [(name, *case) for name, case in BAD.items()])
def test_a_sound_that_would_be_cut_is_refused(
    case: str, made: Callable[[], bytes], words: str
) -> None:
    with pytest.raises(RefusedSound, match=words):
        seconds_of(made())


def resampled(samples: np.ndarray, rate: int, pieces: int = 1) -> np.ndarray:
    resampler = Resampler(rate, 16_000)
    made = [resampler.feed(each) for each in np.array_split(samples, pieces)]
    return np.concatenate([*made, resampler.flush()])


def tone(hertz: float, rate: int, seconds: float = 0.5) -> np.ndarray:
    return np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate).astype(np.float32)


@pytest.mark.extended
def test_a_tone_stays_the_same_tone() -> None:
    wanted = tone(440, 16_000)[500:-500]
    for rate in (4000, 8000, 11025, 16000, 22050, 44100, 48000, 96000, 192000):
        made = resampled(tone(440, rate), rate)
        assert len(made) == 8000, rate
        np.testing.assert_allclose(made[500:-500], wanted, atol=1e-4, err_msg=f"{rate} Hz")


@pytest.mark.extended
def test_pieces_of_any_size_give_the_same_samples() -> None:
    for rate in (22050, 44100, 48000, 44101):
        sound = np.random.default_rng(0).standard_normal(rate // 8).astype(np.float32)
        whole = resampled(sound, rate)
        for pieces in (7, 100):
            made = resampled(sound, rate, pieces)
            np.testing.assert_allclose(made, whole, atol=1e-5, err_msg=f"{rate} Hz, {pieces}")


def test_what_16_khz_cannot_hold_is_removed_and_not_folded_down() -> None:
    for hertz in (8800, 9000, 15_000, 20_000):
        assert np.abs(resampled(tone(hertz, 48_000), 48_000)[300:-300]).max() < 1e-3


def test_a_sound_shorter_than_the_filter_is_resampled() -> None:
    assert len(resampled(np.ones(3, np.float32), 48_000)) == 1
    assert len(resampled(np.zeros(0, np.float32), 48_000)) == 0


@pytest.mark.parametrize(
    ("bins", "most", "text"),
    [
        (0, 1, "at most 1 s of each; send it in parts"),
        (0, 90, "at most 90 s of each; send it in parts"),
        (0, 2400, "at most 40 minutes of each; send it in parts"),
        (80, 3600, "at most 60 minutes (override MAX_AUDIO_MINUTES); send it in parts"),
    ],
)
def test_a_sound_that_is_too_long_is_told_the_most(bins: int, most: int, text: str) -> None:
    with pytest.raises(RefusedSound) as caught:
        decoded(flac_told(HERE * (most + 1)), SoundForm(bins, 0, most))
    assert text in str(caught.value)
