"""Sounds through a cell of real processes: OpenAI's client, Saxml's calls and the command lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import openai
import pytest
import soundfile

import sax
from sax.client import Client
from sax.errors import InvalidRequest
from sax.speech import TranscriptRequest
from tests.end_to_end.cell import ROOT, Cell
from tests.golden.sound_folder import write_case
from tests.tools.golden.sounds import CASES, sound_of

EAR, CASE = "/sax/test/ear", "whisper"
SECONDS = CASES[CASE][1]


@pytest.fixture(scope="module")
def hearing(cell: Cell, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    """The cell with the golden Whisper."""
    folder = tmp_path_factory.mktemp("sounds") / CASE
    write_case(CASE, folder)
    overrides = {"DTYPE": "float32", "BATCH_SIZE": 2}
    cell.publish(str(folder), model=EAR, model_path="auto", overrides=overrides)
    yield cell
    cell.sax("unpublish", EAR)


@pytest.fixture(scope="module")
def wav() -> bytes:
    into = BytesIO()
    soundfile.write(into, sound_of(CASE, SECONDS), 16_000, format="WAV", subtype="FLOAT")
    return into.getvalue()


@pytest.fixture
def client(hearing: Cell) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{hearing.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def run(cell: Cell, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "SAX_ADMIN": cell.plan.admin_address},
    )


def test_openais_client_gets_text_times_subtitles_and_a_stream(
    client: openai.OpenAI, wav: bytes
) -> None:
    file, audio = ("said.wav", wav), client.audio.transcriptions
    verbose = audio.create(model=EAR, file=file, language="de", response_format="verbose_json")
    assert (verbose.language, float(verbose.duration)) == ("german", SECONDS)
    assert verbose.segments
    starts = [each.start for each in verbose.segments]
    assert starts == sorted(starts)
    assert starts[0] >= 0
    assert verbose.segments[-1].end <= SECONDS
    plain = audio.create(model=EAR, file=file, language="de")
    assert plain.text == verbose.text != ""
    subtitles = audio.create(model=EAR, file=file, language="de", response_format="srt")
    assert subtitles.count("-->") == len(verbose.segments)
    events = [*audio.create(model=EAR, file=file, language="de", stream=True)]
    assert events[-1].type == "transcript.text.done"
    assert events[-1].text == plain.text
    pieces = [each.delta for each in events if each.type == "transcript.text.delta"]
    assert "".join(pieces).rstrip() == plain.text


def test_openais_client_is_told_what_is_wrong(client: openai.OpenAI, wav: bytes) -> None:
    with pytest.raises(openai.BadRequestError, match="is not a WAV, FLAC, MP3 or Ogg"):
        client.audio.transcriptions.create(model=EAR, file=("said.wav", b"hello"))
    with pytest.raises(openai.BadRequestError, match="cut off"):
        client.audio.transcriptions.create(model=EAR, file=("said.wav", wav[:1000]))
    with pytest.raises(openai.BadRequestError, match="language"):
        client.audio.transcriptions.create(model=EAR, file=("said.wav", wav), language="xx")
    with pytest.raises(openai.BadRequestError, match="does not serve"):
        client.chat.completions.create(model=EAR, messages=[{"role": "user", "content": "Hi"}])


def test_our_client_and_saxmls_say_the_same(
    hearing: Cell, wav: bytes, saxml_of: Callable[[Cell], None]
) -> None:
    saxml_of(hearing)
    with Client(hearing.plan.admin_address) as client:
        found = client.transcribe(TranscriptRequest(model_id=EAR, sound=wav))
        parts = [*client.transcribe_stream(TranscriptRequest(model_id=EAR, sound=wav))]
        assert parts[0].duration == SECONDS
        assert [each for part in parts for each in part.segments] == [*found.segments]
        with pytest.raises(InvalidRequest, match="does not serve"):
            client.embed(EAR, ["text"])
    ((text, score),) = sax.Model(EAR).AM().Recognize(wav)
    assert text == found.text
    assert score == pytest.approx(found.score)


def test_the_command_lines_write_down_a_file(hearing: Cell, wav: bytes, tmp_path: Path) -> None:
    file = tmp_path / "said.wav"
    file.write_bytes(wav)
    done = run(hearing, "sax.cli", "transcribe", EAR, file, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["duration"] == SECONDS
    timed = run(hearing, "sax.cli", "transcribe", EAR, file, "--times")
    lines = timed.stdout.splitlines()
    assert len(lines) == len(found["segments"])
    assert lines[0].split("\t")[0] == f"{found['segments'][0]['start']:.2f}"
    table = run(hearing, "sax.cli.saxutil", "am.recognize", EAR, file)
    assert table.returncode == 0, table.stderr
    assert found["text"][:10] in table.stdout
    missing = run(hearing, "sax.cli", "transcribe", EAR, "/no/such/file")
    assert "cannot be read" in missing.stderr
