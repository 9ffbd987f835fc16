"""A model of sounds between the decoder and its batches, with a decoder that waits."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import aclosing

import numpy as np
import pytest

from model_server.loading.images.sound_decoder import DecodedSound, SoundDecoder
from model_server.serving.batch_servable import BatchServable
from model_server.serving.passes.sounds import transcribed
from model_server.serving.query_cost import BatchCost
from model_server.sharing.audio.process import SoundForm
from sax.errors import NotLoaded, QueueFull
from sax.speech.transcripts import TranscriptRequest, WholeTranscript, whole_transcript
from tests.model_server.fake_sounds import FakeAudioRunner, fake_audio
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
