"""Texts on their way to sounds: pieces, voices, files as they come, and what is refused."""

from __future__ import annotations

import threading
from contextlib import aclosing
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import soundfile

from model_server.serving.batch_servable import BatchServable
from model_server.serving.passes.speech import SoundWriter, pieces_of, spoken
from model_server.sharing.audio.process import SoundForm
from model_server.sharing.audio.worker import decoded
from sax.errors import InvalidRequest
from sax.speech import (
    FORMATS,
    PCM_RATE,
    SoundFormat,
    SpeechRequest,
    SpokenPart,
    WholeSound,
    whole_sound,
)
from tests.each_case import each_case
from tests.model_server.fake_synthesizer import FRAME, RATE, FakeSynthesizerRunner, fake_synthesizer

SENTENCE = f"{'a' * 60}. "
REQUEST = SpeechRequest(model_id="/sax/test/voice", text=SENTENCE, seed=5)


class Speaker:
    def __init__(self) -> None:
        gate = threading.Event()
        gate.set()
        self.servable = BatchServable("/sax/test/voice", fake_synthesizer(gate))
        runner = self.servable.loaded.runner
        assert isinstance(runner, FakeSynthesizerRunner)
        self.runner = runner

    async def parts(self, **changes: Any) -> list[SpokenPart]:
        async with aclosing(spoken(self.servable, replace(REQUEST, **changes))) as parts:
            return [part async for part in parts]

    async def sound(self, **changes: Any) -> WholeSound:
        return whole_sound(await self.parts(**changes))


async def test_a_text_comes_piece_by_piece_and_each_draws_its_own_numbers() -> None:
    speaker = Speaker()
    parts = await speaker.parts(text=3 * SENTENCE)
    assert [part.frames for part in parts] == [60, 60, 60]
    assert [part.tokens for part in parts] == [60, 60, 60]
    assert [part.duration for part in parts] == [60 * FRAME / RATE] * 3
    assert [(each.seed, each.index) for each in speaker.runner.pieces] == [(5, 0), (5, 1), (5, 2)]
    await speaker.parts(seed=None)
    await speaker.parts(seed=None)
    first, second = (each.seed for each in speaker.runner.pieces[3:])
    assert first != second
    await speaker.servable.close(1.0)


async def test_a_slow_text_is_cut_into_shorter_pieces() -> None:
    speaker = Speaker()
    await speaker.parts(text="a" * 190)
    await speaker.parts(text="a" * 190, speed=0.5)
    assert [len(each.tokens) for each in speaker.runner.pieces] == [190, 100, 90]
    await speaker.servable.close(1.0)


async def test_a_voice_is_a_name_or_a_number_of_a_speaker() -> None:
    speaker = Speaker()
    for voice in ("", "default", "1", "nova"):
        await speaker.parts(voice=voice)
    assert [each.speaker for each in speaker.runner.pieces] == [0, 0, 1, 1]
    with pytest.raises(InvalidRequest, match=r"alloy.*default, 0, 1, nova.*VOICES") as caught:
        await speaker.parts(voice="alloy")
    assert caught.value.param == "voice"
    await speaker.servable.close(1.0)


async def test_what_cannot_be_spoken_is_refused_by_name() -> None:
    speaker = Speaker()
    for changes, param, words in (
        ({"text": "42!"}, "input", "no character"),
        ({"text": "z" * 200, "speed": 1.0}, "speed", "longer than 31 s"),
    ):
        with pytest.raises(InvalidRequest, match=words) as caught:
            await speaker.parts(**changes)
        assert caught.value.param == param
    await speaker.servable.close(1.0)


async def test_a_wav_has_its_length_unless_it_is_still_being_spoken() -> None:
    speaker = Speaker()
    for text, whole in ((SENTENCE, False), (3 * SENTENCE, True)):
        made = await speaker.sound(text=text, whole=whole)
        samples, rate = soundfile.read(BytesIO(made.data), dtype="int16")
        assert (rate, len(samples)) == (RATE, made.frames * FRAME)
        assert set(samples.tolist()) == {round(0.01 * 32767)}
    streamed = (await speaker.sound(text=3 * SENTENCE)).data
    assert streamed[4:8] == streamed[40:44] == b"\xff" * 4
    assert streamed[44:] == made.data[44:]
    await speaker.servable.close(1.0)


def tone(rate: int, seconds: float) -> np.ndarray:
    return np.sin(2 * np.pi * 440 * np.arange(int(rate * seconds)) / rate).astype(np.float32) / 2


@each_case("format", FORMATS)
def test_every_format_is_decoded_to_what_was_written(format: SoundFormat) -> None:
    for rate in (16_000, 22_050):
        for at_once in (True, False):
            encoder, pieces = SoundWriter(format, rate, at_once=at_once), 3
            sent = [encoder.feed(tone(rate, 0.5)) for _ in range(pieces)]
            assert any(sent) != at_once
            data = b"".join((*sent, encoder.finish()))
            if format == "pcm":
                found, wanted = np.frombuffer(data, "<i2") / 32767, tone(PCM_RATE, 0.5)
            else:
                found, wanted = decoded(data, SoundForm(0, 0, 60)), tone(16_000, 0.5)
            # MP3 and Opus add some silence at the ends.
            lossy = format in ("mp3", "opus")
            assert abs(len(found) - pieces * len(wanted)) <= (3000 if lossy else pieces)
            loud = np.sqrt(np.mean(np.square(found)))
            assert loud == pytest.approx(0.5 / np.sqrt(2), rel=0.1 if lossy else 0.02)
            if not lossy:
                assert np.abs(found[: len(wanted)] - wanted)[200:-200].max() < 0.01


@each_case(
    "text, pieces",
    [
        ("One. Two. Three.", ["One. Two. ", "Three."]),  # the first end behind 8 characters
        ("Dr. No came.", ["Dr. No came."]),
        ('He said "Go!" Then he left.', ['He said "Go!" ', "Then he left."]),
        ("Three point 3.14 is one", ["Three point 3.14 is ", "one"]),
        ("one two three, four five six", ["one two three, ", "four five six"]),
        ("abcdefghijklmnopqrstuvwxyz", ["abcdefghijklmnopqrst", "uvwxyz"]),
        ("a line\nand one more", ["a line\nand one more"]),
        ("a long line\nand one more", ["a long line\n", "and one more"]),
        ("\u6211\u4eec\u5230\u5bb6\u4e86\u5f88\u65e9\u3002\u597d\u3002", None),
        ("", []),
    ],
)
def test_a_text_is_cut_at_ends_of_sentences_then_clauses_then_words(
    text: str, pieces: list[str] | None
) -> None:
    found = [*pieces_of(text, 8, 20)]
    assert "".join(found) == text
    assert all(len(piece) <= 20 for piece in found)
    if pieces is not None:
        assert found == pieces
    else:
        assert len(found) == 2
