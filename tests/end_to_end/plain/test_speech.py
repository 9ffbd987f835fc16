"""Recorded speech through a cell with the real whisper-tiny.en: what is said, and when."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import BytesIO
from itertools import pairwise
from typing import Any

import numpy as np
import openai
import pytest
import soundfile
from scipy.signal import resample_poly

from tests.ctranslate2.whisper_folder import write_whisper
from tests.end_to_end.cell import ROOT, Cell
from tests.golden.passage import PAUSE_S, RATE, SENTENCES, passage, recordings, spans, words
from tests.real_models import speech, whisper_tiny_en

EAR = "/sax/test/whisper"
SAID = [word for sentence in SENTENCES for word in words(sentence)]
CLOSE_S = 0.5


@pytest.fixture(scope="module")
def hearing(cell: Cell, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    source, folder = whisper_tiny_en(), tmp_path_factory.mktemp("speech")
    converted = write_whisper(source, folder / "whisper-tiny.en")
    overrides = {"DTYPE": "float32", "BATCH_SIZE": 1}
    cell.publish(str(converted), model=EAR, model_path="auto", overrides=overrides)
    yield cell
    cell.sax("unpublish", EAR)


@pytest.fixture(scope="module")
def read() -> list[np.ndarray]:
    """The recordings."""
    return recordings(speech())


@pytest.fixture
def transcriptions(hearing: Cell) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{hearing.url}/v1", api_key="none", max_retries=0) as made:
        yield made.audio.transcriptions


@pytest.fixture(scope="module")
def wav(read: list[np.ndarray]) -> tuple[str, bytes]:
    """The passage as it was recorded."""
    return file_of(passage(read), RATE, "WAV")


def file_of(samples: np.ndarray, rate: int, form: str) -> tuple[str, bytes]:
    into = BytesIO()
    soundfile.write(into, samples, rate, format=form)
    return f"said.{form.lower()}", into.getvalue()


@pytest.mark.nightly
def test_every_word_is_heard_where_it_was_read_in_the_segments_of_the_reference(
    transcriptions: Any, read: list[np.ndarray], wav: tuple[str, bytes]
) -> None:
    found = transcriptions.create(model=EAR, file=wav, response_format="verbose_json")
    assert words(found.text) == SAID
    for sentence, (start, end) in zip(SENTENCES, spans(read), strict=True):
        inside = [each for each in found.segments if start < (each.start + each.end) / 2 < end]
        assert words(" ".join(each.text for each in inside)) == words(sentence)
        assert inside[0].start == pytest.approx(start, abs=CLOSE_S)
        # The model counts the pause after a sentence as part of it.
        assert end - CLOSE_S < inside[-1].end < end + PAUSE_S + CLOSE_S
    heard = json.loads((ROOT / "tests" / "golden" / "speech.json").read_text(encoding="utf-8"))
    wanted = heard["segments"]
    assert [each.text for each in found.segments] == [each["text"] for each in wanted]
    for key in ("start", "end"):
        times = [getattr(each, key) for each in found.segments]
        assert times == pytest.approx([each[key] for each in wanted])


@pytest.mark.nightly
def test_each_word_has_the_times_that_the_reference_finds(
    transcriptions: Any, read: list[np.ndarray], wav: tuple[str, bytes]
) -> None:
    asked = {"model": EAR, "response_format": "verbose_json", "timestamp_granularities": ["word"]}
    found = transcriptions.create(file=wav, **asked)
    assert found.segments is None
    heard = json.loads((ROOT / "tests" / "golden" / "speech.json").read_text(encoding="utf-8"))
    wanted = heard["words"]
    assert [each.word for each in found.words] == [each["text"] for each in wanted]
    for key in ("start", "end"):
        times = [getattr(each, key) for each in found.words]
        assert times == pytest.approx([each[key] for each in wanted], abs=0.021), key  # a step
    twice = file_of(passage([*read, *read]), RATE, "FLAC")
    both = transcriptions.create(file=twice, **asked).words
    assert words(" ".join(each.word for each in both)) == [*SAID, *SAID]
    assert all(one.end <= next.start + 0.02 for one, next in pairwise(both))
    spoken = [*spans([*read, *read])]
    (first, _), (_, last) = spoken[0], spoken[-1]
    assert first - CLOSE_S < both[0].start < both[-1].end < last + CLOSE_S


@pytest.mark.nightly
def test_speech_of_several_windows_is_streamed_without_a_lost_word(
    transcriptions: Any, read: list[np.ndarray]
) -> None:
    twice = file_of(passage([*read, *read]), RATE, "FLAC")
    events = [*transcriptions.create(model=EAR, file=twice, stream=True)]
    said = "".join(each.delta for each in events if each.type == "transcript.text.delta")
    assert words(said) == words(events[-1].text) == [*SAID, *SAID]


@pytest.mark.nightly
def test_the_same_is_heard_in_an_mp3_of_two_channels(
    transcriptions: Any, read: list[np.ndarray]
) -> None:
    faster = resample_poly(passage(read), 441, 160).astype(np.float32)
    mp3 = file_of(np.stack([faster, faster], 1), 44_100, "MP3")
    assert words(transcriptions.create(model=EAR, file=mp3).text) == SAID
