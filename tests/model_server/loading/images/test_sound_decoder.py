"""Sounds of strangers: decoded in another process, or refused in words."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from model_server.loading.images.decoders import SoundDecoder
from model_server.sharing.audio.process import SoundAsk, SoundForm, SoundProcess
from model_server.sharing.audio.spectrogram import spectrogram
from model_server.sharing.audio.worker import answer
from model_server.sharing.confined.process import ProcessEnded
from sax.errors import InvalidRequest, QueueFull

FORM = SoundForm(bins=8, least_frames=100, most_seconds=60)
KINDS = {
    "WAV": "PCM_16",
    "FLAC": "PCM_16",
    "MP3": "MPEG_LAYER_III",
    "OGG": "VORBIS",
}


def sound(seconds: float = 1.5, rate: int = 16_000) -> np.ndarray:
    t = np.arange(int(rate * seconds)) / rate
    return (0.4 * np.sin(2 * np.pi * 440 * t) * np.sin(5 * t)).astype(np.float32)


def encoded(samples: np.ndarray, kind: str = "WAV", rate: int = 16_000, **options: Any) -> bytes:
    into = BytesIO()
    soundfile.write(into, samples, rate, format=kind, **{"subtype": KINDS.get(kind)} | options)
    return into.getvalue()


@pytest.fixture(scope="module")
def decoder() -> SoundDecoder:
    return SoundDecoder(lanes=1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_becomes_a_spectrogram(decoder: SoundDecoder, kind: str) -> None:
    made = decoder.submit(encoded(sound(), kind), FORM).result()
    exact = spectrogram(sound(), 8)
    assert abs(made.samples - 24_000) <= 1200  # MP3 pads
    # Codecs with loss change what is quiet: compare the loud.
    off = np.abs(made.mels[:150] - exact)[exact > exact.max() - 0.5]
    assert off.max() < (0.01 if kind in ("WAV", "FLAC") else 0.2)


def test_opus_is_decoded_and_channels_are_mixed(decoder: SoundDecoder) -> None:
    stereo = np.stack([sound(rate=48_000), -sound(rate=48_000)], 1)
    made = decoder.submit(encoded(stereo, "OGG", 48_000, subtype="OPUS"), FORM).result()
    assert made.mels.shape == (150, 8)
    assert decoder.submit(encoded(stereo, "FLAC", 48_000), FORM).result().mels.max() < -1


def test_a_short_sound_ends_in_silence(decoder: SoundDecoder) -> None:
    made = decoder.submit(encoded(sound(0.01)), FORM).result()
    assert (made.mels.shape, made.samples) == ((100, 8), 160)


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "is empty"),
    "text": (lambda: b"hello", "is not a WAV, FLAC, MP3 or Ogg"),
    "image": (lambda: b"\x89PNG\r\n\x1a\n" + bytes(200), "is not a WAV, FLAC, MP3 or Ogg"),
    "aiff": (lambda: encoded(sound(), "AIFF", subtype="PCM_16"), "is a AIFF file"),
    "cut wav": (lambda: _cut(encoded(sound())), "is cut off: its header promises"),
    "cut flac": (lambda: _cut(encoded(sound(), "FLAC")), "is cut off|is damaged"),
    "cut mp3": (lambda: _cut(encoded(sound(9), "MP3")), "is cut off|is damaged"),
    "cut ogg": (lambda: _cut(encoded(sound(), "OGG")), "cut off|is damaged"),
    "long": (lambda: encoded(sound(61)), r"is too long \(61 s\): this model takes at most 1 min"),
    "channels": (lambda: encoded(np.zeros((99, 9))), "has 9 channels: at most 8"),
    "slow": (lambda: encoded(sound(), rate=1000), "has 1000 samples a second"),
    "no number": (
        lambda: encoded(np.full(900, np.nan, np.float32), subtype="FLOAT"),
        "has samples that are no finite numbers",
    ),
    "none": (lambda: encoded(np.zeros(0, np.float32)), "has no samples"),
}


def test_a_bad_sound_is_refused_in_words(decoder: SoundDecoder) -> None:
    for make, words in BAD.values():
        with pytest.raises(InvalidRequest, match=f"^the sound .*{words}") as caught:
            decoder.submit(make(), FORM).result()
        assert caught.value.param == "file"
        assert decoder.submit(encoded(sound(0.1)), FORM).result().samples == 1600


def test_a_header_that_lies_about_the_length_does_not_help(decoder: SoundDecoder) -> None:
    data = bytearray(encoded(sound(61), "WAV"))
    data[4:8] = data[40:44] = b"\xff\xff\xff\xff"  # as streamed: no length
    with pytest.raises(InvalidRequest, match="too long"):
        decoder.submit(bytes(data), FORM).result()


@given(
    st.sampled_from([*KINDS]),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(max_size=9)), min_size=1),
)
@settings(deadline=None, max_examples=40)
def test_bytes_that_were_changed_anywhere_give_a_spectrogram_or_words(
    kind: str, changes: list[tuple[float, bytes]]
) -> None:
    data = bytearray(encoded(sound(0.2), kind))
    for place, put in changes:
        at = int(place * len(data))
        data[at : at + len(put)] = put
    found = answer(SoundAsk(bytes(data), FORM))
    assert found.kind == "spectrogram" or found.text


def test_a_sound_that_takes_too_long_ends_its_process_and_not_the_next_sound() -> None:
    process = SoundProcess(0.05)
    process.start()
    ask = SoundAsk(encoded(sound(59, 44_100), "FLAC", 44_100), FORM)
    with pytest.raises(ProcessEnded, match="of processor time and was stopped"):
        process.answer(ask)
    process.stop()
    whole = SoundProcess()
    assert whole.answer(SoundAsk(encoded(sound()), FORM)).kind == "spectrogram"
    whole.stop()


def test_a_process_that_dies_costs_one_sound(decoder: SoundDecoder) -> None:
    process = SoundProcess()
    process.start()
    pid = process._process.pid  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]
    os.kill(pid, signal.SIGSTOP)  # so that it dies while it has the sound
    killer = threading.Timer(0.3, os.kill, (pid, signal.SIGKILL))
    killer.start()
    with pytest.raises(ProcessEnded):
        process.answer(SoundAsk(encoded(sound()), FORM))
    killer.join()
    assert process.answer(SoundAsk(encoded(sound()), FORM)).kind == "spectrogram"
    process.stop()


def test_more_sounds_than_it_holds_are_turned_away() -> None:
    busy = SoundDecoder(lanes=0, waiting=100)
    waiting = busy.submit(bytes(90), FORM)
    with pytest.raises(QueueFull, match="of sounds wait to be decoded"):
        busy.submit(bytes(20), FORM)
    waiting.cancel()
    assert not busy.submit(bytes(20), FORM).done()
