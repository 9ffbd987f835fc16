"""Speech through a cell of real processes: OpenAI's client, ours and the command line."""

from __future__ import annotations

import base64
import json
import wave
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import httpx
import openai
import pytest
import soundfile

from model_server.sharing.audio.worker import decoded
from sax.client import Client
from sax.errors import InvalidRequest
from sax.speech import PCM_RATE, SpeechRequest
from tests.end_to_end.cell import Cell
from tests.golden.voice_folder import write_case

pytestmark = pytest.mark.nightly

VOICE, CASE = "/sax/test/voice", "vits_speakers"
SENTENCE = "the cat sat on it, and then it sat on the hat of the other cat. "
FRAME, RATE = 8, 16_000  # of the golden model


@pytest.fixture(scope="module")
def speaking(cell: Cell, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    """The cell with a golden VITS."""
    folder = write_case(CASE, tmp_path_factory.mktemp("voices") / CASE)
    overrides = {"VOICES": {"alloy": 2}, "TOKEN_BUCKETS": [256], "FRAME_BUCKETS": [2048]}
    cell.publish(str(folder), model=VOICE, model_path="auto", overrides=overrides)
    yield cell
    cell.sax("unpublish", VOICE)


def asked(cell: Cell, **fields: object) -> httpx.Response:
    body = {"model": VOICE, "input": SENTENCE, "seed": 3, **fields}
    return httpx.post(f"{cell.url}/v1/audio/speech", json=body, timeout=120)


def test_a_wav_is_as_long_as_the_durations_say(speaking: Cell) -> None:
    *deltas, done = (
        json.loads(line[6:])
        for line in asked(speaking, response_format="wav", stream_format="sse").text.split("\n\n")
        if line
    )
    told = b"".join(base64.b64decode(each["audio"]) for each in deltas)
    reply = asked(speaking, response_format="wav")
    assert reply.content == told  # one seed, one sound
    with wave.open(BytesIO(told)) as file:
        assert (file.getnchannels(), file.getframerate(), file.getsampwidth()) == (1, RATE, 2)
        assert file.getnframes() == FRAME * done["usage"]["output_tokens"]
    assert asked(speaking, response_format="wav", seed=4).content != told
    faster = asked(speaking, response_format="wav", speed=2.0).content
    assert len(faster) < 0.8 * len(told)


def test_openais_client_streams_files_of_every_format(speaking: Cell) -> None:
    with openai.OpenAI(base_url=f"{speaking.url}/v1", api_key="none", max_retries=0) as client:
        for format in ("mp3", "opus", "flac", "wav"):
            with client.audio.speech.with_streaming_response.create(
                model=VOICE, voice="alloy", input=3 * SENTENCE, response_format=format
            ) as reply:
                data = b"".join(reply.iter_bytes())
            assert len(decoded(data, 60)) > RATE / 10
        with pytest.raises(openai.BadRequestError, match=r"nova.*alloy"):
            client.audio.speech.create(model=VOICE, voice="nova", input="hello")
        with pytest.raises(openai.BadRequestError, match="instructions"):
            client.audio.speech.create(
                model=VOICE, voice="alloy", input="hello", instructions="whisper"
            )
        with pytest.raises(openai.BadRequestError, match="does not serve"):
            client.chat.completions.create(model=VOICE, messages=[{"role": "user", "content": "a"}])


def test_our_client_and_the_command_line_say_the_same(speaking: Cell, tmp_path: Path) -> None:
    request = SpeechRequest(model_id=VOICE, text=2 * SENTENCE, seed=3, format="pcm")
    with Client(speaking.plan.admin_address) as client:
        whole, parts = client.speak(request), [*client.speak_stream(request)]
        assert b"".join(part.data for part in parts) == whole.data
        assert len([part for part in parts if part.tokens]) == 2
        assert len(whole.data) / 2 / PCM_RATE == pytest.approx(whole.duration, abs=0.001)
        with pytest.raises(InvalidRequest, match="does not serve"):
            client.embed(VOICE, ["text"])
    file = tmp_path / "said.flac"
    speaking.sax("speak", VOICE, 2 * SENTENCE, "-o", str(file), "--seed", "3")
    samples, rate = soundfile.read(file)
    assert (rate, len(samples) / rate) == (RATE, pytest.approx(whole.duration, abs=0.001))
