"""Sounds on their way to batches: windows, segments, and answers that are tried again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from model_server.loading.audio.loaded_audio import SpeechWindow, WrittenWindow
from model_server.loading.images.decoders import DecodedSound, SoundDecoder
from model_server.serving.batch_servable import BatchServable
from model_server.serving.passes.sounds import (
    TEMPERATURES,
    Judged,
    Piece,
    Transcription,
    compression_ratio,
    cut,
    judged,
    temperatures_of,
    transcribed,
)
from model_server.serving.query_cost import BatchCost
from model_server.sharing.audio.process import SoundForm
from sax.errors import InvalidRequest, NotLoaded, QueueFull
from sax.speech import (
    TimedWord,
    TranscriptPart,
    TranscriptRequest,
    WholeTranscript,
    whole_transcript,
)
from tests.model_server.fake_sounds import TOKENS, FakeAudioRunner, fake_audio, looked_at
from tests.model_server.waiting import until

REQUEST = TranscriptRequest(model_id="/sax/test/ear", sound=b"sound")
SOUND = DecodedSound(np.zeros((200, 8), np.float32), 32_000)


class HeldDecoder(SoundDecoder):
    """Decodes a sound when the test says so."""

    def __init__(self) -> None:
        super().__init__(lanes=0)
        self.held: list[Future[DecodedSound]] = []

    def submit(self, sound: bytes, form: SoundForm) -> Future[DecodedSound]:
        self.held.append(future := Future())
        return future


class Ear:
    """A servable whose decoder and runner wait."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.decoder = HeldDecoder()
        self.servable = BatchServable("/sax/test/ear", fake_audio(self.gate))
        runner = self.servable.loaded.runner
        assert isinstance(runner, FakeAudioRunner)
        self.runner = runner
        self.cost = BatchCost()

    async def written(self) -> WholeTranscript:
        async with aclosing(transcribed(self.servable, REQUEST, self.cost, self.decoder)) as parts:
            return whole_transcript([part async for part in parts])

    async def begun(self, count: int = 1) -> list[asyncio.Task[WholeTranscript]]:
        tasks = [asyncio.create_task(self.written()) for _ in range(count)]
        await until(lambda: len(self.decoder.held) >= count)
        for each in self.decoder.held:
            each.set_result(SOUND)
        return tasks


@pytest.fixture
async def ear() -> Ear:
    return Ear()


async def test_a_sound_is_written_down_and_its_cost_is_told(ear: Ear) -> None:
    ear.gate.set()
    (writing,) = await ear.begun()
    found = await writing
    assert (found.text, found.language, found.duration) == ("a b", "de", 2.0)
    assert ear.cost.milliseconds >= 1
    assert ear.servable.batches == 2
    assert (ear.servable.running, ear.servable.waiting) == (0, 0)
    await ear.servable.close(1.0)


async def test_windows_of_two_sounds_share_batches(ear: Ear) -> None:
    tasks = await ear.begun(2)
    await until(lambda: ear.runner.batches != [])
    ear.gate.set()
    texts = sorted([(await each).text for each in tasks])
    assert texts == ["a c", "b d"]
    assert ear.runner.batches == [2, 2]
    await ear.servable.close(1.0)


async def test_a_caller_that_goes_away_frees_its_place_and_its_window(ear: Ear) -> None:
    (writing,) = await ear.begun()
    await until(lambda: ear.runner.batches == [1])
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    assert ear.servable.waiting == 0
    ear.gate.set()
    await until(lambda: len(ear.runner.windows) == 1)
    assert ear.runner.windows[0].gone.is_set()
    await ear.servable.close(1.0)


async def test_more_sounds_than_it_holds_are_turned_away(ear: Ear) -> None:
    tasks = [asyncio.create_task(ear.written()) for _ in range(6)]
    await until(lambda: len(ear.decoder.held) == 6)
    with pytest.raises(QueueFull, match="6 sounds are on their way"):
        await ear.written()
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert ear.servable.waiting == 0
    ear.gate.set()
    await ear.servable.close(1.0)


async def test_an_unload_lets_sounds_finish_and_waits_no_longer_than_it_was_told(ear: Ear) -> None:
    (writing,) = await ear.begun()
    closing = asyncio.create_task(ear.servable.close(drain_s=30))
    await until(lambda: ear.runner.batches == [1])
    assert not closing.done()
    ear.gate.set()
    assert (await writing).text == "a b"
    await closing
    assert ear.runner.closed


async def test_a_sound_that_is_late_is_told_of_the_unload(ear: Ear) -> None:
    writing = asyncio.create_task(ear.written())
    await until(lambda: len(ear.decoder.held) == 1)
    await ear.servable.close(drain_s=0.01)
    ear.decoder.held[0].set_result(SOUND)
    with pytest.raises(NotLoaded):
        await writing


T = 1000  # the token of 0.00 s


def test_pairs_of_timestamps_cut_and_the_next_window_begins_at_the_last() -> None:
    found = cut((T, 1, 2, T + 10, T + 10, 3, T + 20, T + 20, 4), T, 100)
    assert found.pieces == [
        Piece(0.0, 0.2, (T, 1, 2, T + 10)),
        Piece(0.2, 0.4, (T + 10, 3, T + 20)),
    ]
    assert found.frames == 40


def test_a_timestamp_alone_at_the_end_says_that_nothing_follows() -> None:
    found = cut((T, 1, T + 10, T + 12, 2, T + 30), T, 100)
    assert [each.tokens for each in found.pieces] == [(T, 1, T + 10), (T + 12, 2, T + 30)]
    assert found.frames == 100


def test_without_pairs_the_window_is_one_segment() -> None:
    for tokens, end in (((T, 1, 2), 1.0), ((T, 1, T + 20), 0.4), ((1, 2), 1.0), ((), 1.0)):
        found = cut(tokens, T, 100)
        assert found.pieces == [Piece(0.0, end, tokens)]
        assert found.frames == 100


def test_a_window_always_moves_on_and_never_past_its_end() -> None:
    assert cut((T, T, 1), T, 100).frames == 100
    assert cut((T, 1, T + 50, T + 50), T, 60).frames == 60


def judge(text: str, logprob: float, no_speech: float = 0.0) -> Judged:
    return judged(WrittenWindow((1, 2, 3), logprob, no_speech, None), text, 0.0)


def test_a_likely_text_that_does_not_repeat_itself_is_good() -> None:
    found = judge("the cat sat on the mat", -2.0)
    assert (found.is_bad, found.is_silence, found.avg_logprob) == (False, False, -0.5)


def test_repetition_and_unlikely_text_are_tried_again() -> None:
    assert judge("again and again " * 20, -0.1).is_bad
    assert judge("xyz", -8.0).is_bad


def test_an_unlikely_text_where_nobody_speaks_is_silence_and_stands() -> None:
    found = judge("xyz", -8.0, no_speech=0.7)
    assert (found.is_bad, found.is_silence) == (False, True)
    assert not judge("hello", -1.0, no_speech=0.9).is_silence


def test_a_caller_that_names_a_temperature_gets_that_alone() -> None:
    assert temperatures_of(0.0) == TEMPERATURES
    assert temperatures_of(0.3) == (0.3,)


def test_nothing_compresses_to_nothing() -> None:
    assert compression_ratio("") == 0.0
    assert compression_ratio("a") == pytest.approx(1 / 9)


MELS = np.zeros((260, 8), np.float32)


class Asked:
    """Asks the fake runner, and changes its answers on request."""

    def __init__(self) -> None:
        (gate := threading.Event()).set()
        self.loaded = fake_audio(gate)
        assert isinstance(self.loaded.runner, FakeAudioRunner)
        self.runner = self.loaded.runner
        self.change: Callable[[SpeechWindow, WrittenWindow], WrittenWindow] = lambda _, given: given

    async def ask(self, window: SpeechWindow) -> WrittenWindow:
        (answer,) = self.runner.run([window])
        return self.change(window, answer)

    async def parts(self, frames: int = 250, **fields: Any) -> list[TranscriptPart]:
        request = TranscriptRequest(model_id="/sax/test/ear", sound=b"", **fields)
        made = Transcription(self.loaded, request, self.ask)
        return [part async for part in made.parts(MELS, frames)]

    async def text(self, **fields: Any) -> str:
        parts = await self.parts(**fields)
        return "".join(each.text for part in parts for each in part.segments)


@pytest.fixture
def asked() -> Asked:
    return Asked()


async def test_windows_follow_each_other_and_the_last_one_ends_with_the_sound(asked: Asked) -> None:
    segments = [each for part in await asked.parts() for each in part.segments]
    assert [(each.start, each.end, each.text, each.seek) for each in segments] == [
        (0.0, 1.0, " a", 0),
        (1.0, 2.0, " b", 100),
        (2.0, 2.5, " c", 200),
    ]
    assert [len(each.mels) for each in asked.runner.windows] == [100, 100, 60]


async def test_words_have_times_if_they_are_asked_for(asked: Asked) -> None:
    assert [each.words for part in await asked.parts() for each in part.segments] == [()] * 3
    assert [each.times for each in asked.runner.windows] == [0] * 3
    found = [each.words for part in await asked.parts(words=True) for each in part.segments]
    # A space and a letter, of 0.2 s each, from the window's start.
    assert [[(word.start, word.end, word.text) for word in words] for words in found] == [
        [(0.0, 0.4, "d")],
        [(1.0, 1.4, "e")],
        [(2.0, 2.4, "f")],
    ]
    assert [each.times for each in asked.runner.windows[3:]] == [50, 50, 25]


async def test_words_of_what_is_left_out_are_left_out(asked: Asked) -> None:
    zero, (space, a) = TOKENS.timestamps, asked.loaded.tokenizer.encode(" a", add_bos=False)
    gone, kept = (zero, space, a, zero), (zero, space, a, a, zero + 50)
    looked = looked_at(5, 50)
    asked.change = lambda _, given: given._replace(tokens=(*gone, *kept), looked=looked)
    ((segment,),) = [part.segments for part in await asked.parts(frames=100, words=True)]
    assert segment.words == (TimedWord(start=0.4, end=0.98, text="aa"),)


async def test_a_model_whose_heads_do_not_follow_the_sound_times_no_words(asked: Asked) -> None:
    asked.loaded = replace(asked.loaded, times_words=False)
    assert await asked.parts()
    with pytest.raises(InvalidRequest, match="no alignment_heads"):
        await asked.parts(words=True)


async def test_the_language_is_heard_once(asked: Asked) -> None:
    assert [each.language for each in await asked.parts()] == ["de"] * 3
    german = TOKENS.languages["de"]
    assert [each.language for each in asked.runner.windows] == [None, german, german]
    await asked.parts(language="french")
    assert asked.runner.windows[3].language == TOKENS.languages["fr"]


async def test_the_text_before_guides_the_next_window(asked: Asked) -> None:
    encode = asked.loaded.tokenizer.encode
    await asked.parts(prompt="ab ")
    first, second, third = (each.previous for each in asked.runner.windows)
    assert first == tuple(encode(" ab", add_bos=False))
    assert second[: len(first)] == first
    assert second[len(first) + 1 : -1] == tuple(encode(" a", add_bos=False))
    assert third[: len(second)] == second


async def test_a_warm_text_is_no_guide(asked: Asked) -> None:
    await asked.parts(temperature=0.9)
    assert [each.previous for each in asked.runner.windows] == [()] * 3
    assert {each.temperature for each in asked.runner.windows} == {0.9}


async def test_a_bad_answer_is_tried_again_warmer_until_one_is_good(asked: Asked) -> None:
    asked.change = lambda window, given: given._replace(
        logprob=0.0 if window.temperature >= 0.4 else -100.0
    )
    segments = [each for part in await asked.parts(frames=100) for each in part.segments]
    assert [each.temperature for each in asked.runner.windows] == [0.0, 0.2, 0.4]
    assert [(each.text, each.temperature) for each in segments] == [(" c", 0.4)]


async def test_the_warmest_answer_stands(asked: Asked) -> None:
    asked.change = lambda _, given: given._replace(logprob=-100.0)
    assert await asked.text(frames=100) == " f"
    assert asked.runner.windows[-1].temperature == 1.0


async def test_silence_says_nothing(asked: Asked) -> None:
    asked.change = lambda _, given: given._replace(logprob=-100.0, no_speech=0.9)
    assert await asked.parts() == []
    assert len(asked.runner.windows) == 3


async def test_segments_without_text_or_length_are_left_out(asked: Asked) -> None:
    zero = TOKENS.timestamps
    asked.change = lambda _, given: given._replace(tokens=(zero, *given.tokens[1:-1], zero + 5))
    assert await asked.text(frames=100) == " a"
    asked.change = lambda _, given: given._replace(tokens=(zero, zero + 50))
    assert await asked.text(frames=100) == ""


async def test_translation_is_another_task(asked: Asked) -> None:
    await asked.parts(frames=100)
    await asked.parts(frames=100, translate=True)
    tasks = [each.task for each in asked.runner.windows]
    assert tasks == [TOKENS.tasks["transcribe"], TOKENS.tasks["translate"]]


async def test_a_language_that_it_does_not_know_is_refused_by_name(asked: Asked) -> None:
    with pytest.raises(InvalidRequest, match=r"'klingon' is not one that .*\(en, de, fr\)"):
        await asked.parts(language="klingon")
