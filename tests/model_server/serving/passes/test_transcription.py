"""Window by window, with a runner whose answers can be worked out by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from model_server.loading.audio.loaded_audio import SpeechWindow, WrittenWindow
from model_server.serving.passes.sounds import Transcription
from sax.errors import InvalidRequest
from sax.speech.transcripts import TranscriptPart, TranscriptRequest
from tests.model_server.fake_sounds import TOKENS, FakeAudioRunner, fake_audio

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
