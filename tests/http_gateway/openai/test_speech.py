"""/v1/audio/speech over a fake cell, which says the words of a text as parts of bytes."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import pytest

from sax.errors import QueueFull, ReplicaLost
from sax.fields.table import SPEECH_CHARACTERS
from sax.speech import SpeechRequest
from tests.each_case import each_case
from tests.http_gateway.fake_cell import FakeCell

PATH, MODEL = "/v1/audio/speech", "/sax/test/llama"


async def ask(http: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await http.post(PATH, json={"model": MODEL, "input": "good evening", **fields})


def events_of(reply: httpx.Response) -> list[dict[str, Any]]:
    assert reply.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line[6:]) for line in reply.text.split("\n\n") if line]


async def test_a_text_is_spoken_as_an_mp3_unless_asked_otherwise(
    http: httpx.AsyncClient, cell: FakeCell
) -> None:
    reply = await ask(http)
    assert reply.status_code == 200, reply.text
    assert (reply.content, reply.headers["content-type"]) == (b"good evening", "audio/mpeg")
    assert cell.speeches == [SpeechRequest(model_id=MODEL, text="good evening", format="mp3")]
    for format, kind in (("wav", "wav"), ("opus", "ogg"), ("flac", "flac"), ("pcm", "pcm")):
        reply = await ask(http, response_format=format, stream_format="audio", instructions="")
        assert reply.headers["content-type"] == f"audio/{kind}"


async def test_every_field_reaches_the_model(http: httpx.AsyncClient, cell: FakeCell) -> None:
    fields = {"voice": "nova", "response_format": "wav", "speed": 0.25, "seed": 7, "timeout": 3}
    assert (await ask(http, **fields)).status_code == 200
    (asked,) = cell.speeches
    assert asked == SpeechRequest(
        model_id=MODEL, text="good evening", voice="nova", format="wav", speed=0.25, seed=7
    )
    assert cell.timeouts[-1] == 3


async def test_events_hold_the_bytes_and_end_with_the_usage(http: httpx.AsyncClient) -> None:
    *deltas, done = events_of(await ask(http, stream_format="sse"))
    assert {each["type"] for each in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(each["audio"]) for each in deltas) == b"good evening"
    assert done == {
        "type": "speech.audio.done",
        "usage": {"input_tokens": 12, "output_tokens": 24, "total_tokens": 36},
    }


async def test_a_sound_that_breaks_off_is_not_taken_for_a_whole_one(
    http: httpx.AsyncClient, cell: FakeCell
) -> None:
    cell.failure, cell.fail_at = ReplicaLost("the replica is gone"), 1
    last = events_of(await ask(http, stream_format="sse"))[-1]
    assert "gone" in last["error"]["message"]
    with pytest.raises(AssertionError, match="^$"):  # httpx: the response was not completed
        await ask(http)


async def test_an_error_before_the_first_byte_has_its_own_status(
    http: httpx.AsyncClient, cell: FakeCell
) -> None:
    cell.failure, cell.fail_at = QueueFull("full", retry_after_s=2.0), 0
    for stream_format in ("audio", "sse"):
        reply = await ask(http, stream_format=stream_format)
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "2")


@each_case(
    "fields, param",
    [
        ({"input": ""}, "input"),
        ({"input": "a" * (SPEECH_CHARACTERS + 1)}, "input"),
        ({"input": 5}, "input"),
        ({"response_format": "aac"}, "response_format"),
        ({"speed": 0.2}, "speed"),
        ({"speed": 4.1}, "speed"),
        ({"seed": -1}, "seed"),
        ({"seed": 1 << 32}, "seed"),
        ({"voice": {"id": "x"}}, "voice"),
        ({"instructions": "whisper it"}, "instructions"),
        ({"stream_format": "chunks"}, "stream_format"),
        ({"nope": 1}, "nope"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(
    fields: dict[str, Any], param: str, http: httpx.AsyncClient, cell: FakeCell
) -> None:
    reply = await ask(http, **fields)
    assert reply.status_code in (400, 422), reply.text
    assert reply.json()["error"]["param"] == param
    assert not cell.speeches
