from __future__ import annotations

import json
from typing import Any

import httpx

from http_gateway.config import GatewayConfig
from http_gateway.openai.audio import shown
from sax.errors import QueueFull, ReplicaLost
from sax.fields.table import SOUND_BYTES
from sax.speech import Segment, WholeTranscript
from tests.each_case import each_case
from tests.http_gateway.conftest import Connect
from tests.http_gateway.fake_cell import FakeCell

TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
MODEL = "/sax/test/llama"
SOUND = b"RIFF" * 31  # 1.24 s of the fake cell


async def ask(
    http: httpx.AsyncClient, path: str = TRANSCRIPTIONS, sound: bytes = SOUND, **fields: Any
) -> httpx.Response:
    files = {"file": ("said.wav", sound, "audio/wav")}
    return await http.post(path, files=files, data={"model": MODEL, **fields})


async def test_a_sound_is_written_down(http: httpx.AsyncClient, cell: FakeCell):
    reply = await ask(http)
    assert reply.status_code == 200, reply.text
    assert reply.json() == {
        "text": "xx transcribe",
        "usage": {"type": "duration", "seconds": 2},
    }
    (asked,) = cell.sounds
    assert (asked.model_id, asked.sound, asked.translate) == (MODEL, SOUND, False)


async def test_every_field_reaches_the_model(http: httpx.AsyncClient, cell: FakeCell):
    fields = {"language": "German", "prompt": "Guten Tag", "temperature": "0.5"}
    reply = await ask(http, **fields)
    assert reply.json()["text"] == "de Guten Tag"
    (asked,) = cell.sounds
    assert (asked.language, asked.prompt, asked.temperature) == ("de", "Guten Tag", 0.5)


async def test_a_translation_is_asked_for_in_english(http: httpx.AsyncClient, cell: FakeCell):
    reply = await ask(http, TRANSLATIONS, response_format="verbose_json")
    assert reply.json()["task"] == "translate"
    assert cell.sounds[0].translate
    refused = await ask(http, TRANSLATIONS, language="de")
    assert refused.json()["error"]["param"] == "language"


async def test_times_come_with_verbose_json(http: httpx.AsyncClient):
    fields = {"timestamp_granularities[]": ["segment"], "language": "fr"}
    reply = (await ask(http, response_format="verbose_json", **fields)).json()
    assert (reply["language"], reply["duration"]) == ("french", 1.24)
    assert reply["segments"][1] == {
        "id": 1,
        "seek": 0,
        "start": 1.5,
        "end": 2.75,
        "text": " transcribe",
        "tokens": [1, 300],
        "temperature": 0.0,
        "avg_logprob": -0.5,
        "compression_ratio": 1.25,
        "no_speech_prob": 0.125,
    }


async def test_times_of_words_come_beside_those_of_segments_or_alone(http: httpx.AsyncClient):
    asked = {"response_format": "verbose_json", "language": "fr"}
    words = [{"word": each, "start": 0.5, "end": 1.0} for each in ("fr", "transcribe")]
    for times in (["word"], ["word", "segment"]):
        fields: dict[str, Any] = {"timestamp_granularities[]": times}
        reply = (await ask(http, **asked, **fields)).json()
        assert reply["words"] == words
        assert ("segments" in reply) == ("segment" in times)
    assert "words" not in (await ask(http, **asked)).json()


async def test_text_and_subtitles_have_their_own_types(http: httpx.AsyncClient):
    text = await ask(http, response_format="text")
    assert (text.text, text.headers["content-type"]) == (
        "xx transcribe\n",
        "text/plain; charset=utf-8",
    )
    srt = await ask(http, response_format="srt")
    assert srt.text == (
        "1\n00:00:00,000 --> 00:00:01,250\nxx\n\n2\n00:00:01,500 --> 00:00:02,750\ntranscribe\n"
    )
    vtt = await ask(http, response_format="vtt")
    assert vtt.headers["content-type"].startswith("text/vtt")
    assert vtt.text == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.250\nxx\n\n00:00:01.500 --> 00:00:02.750\ntranscribe\n"
    )


def test_a_cue_holds_no_arrow_and_hours_count_on():
    segment = Segment(start=3661.5, end=7322.25, text=" a --> b\n\nc")
    whole = WholeTranscript(segments=(segment,), language="en", duration=9000.0)
    made, _ = shown(whole, "vtt", "", ())
    assert made.decode() == "WEBVTT\n\n01:01:01.500 --> 02:02:02.250\na -> b c\n"


async def test_a_stream_tells_each_piece_and_the_whole(http: httpx.AsyncClient):
    reply = await ask(http, stream="true")
    events = [json.loads(line[6:]) for line in reply.text.split("\n\n") if line]
    assert [each.get("delta") for each in events] == ["xx", " transcribe", None]
    assert events[-1] == {
        "type": "transcript.text.done",
        "text": "xx transcribe",
        "usage": {"type": "duration", "seconds": 2},
    }


async def test_a_stream_that_breaks_ends_with_an_error(http: httpx.AsyncClient, cell: FakeCell):
    cell.failure, cell.fail_at = ReplicaLost("the replica is gone"), 2
    reply = await ask(http, stream="true")
    last = json.loads(reply.text.strip().split("\n\n")[-1][6:])
    assert "gone" in last["error"]["message"]
    cell.failure, cell.fail_at = QueueFull("full", retry_after_s=2.0), 0
    assert (await ask(http, stream="true")).status_code == 429


@each_case(
    "fields, param",
    [
        ({"model": ""}, "model"),
        ({"response_format": "diarized_json"}, "response_format"),
        ({"temperature": "2"}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"stream": "yes"}, "stream"),
        ({"stream": "true", "response_format": "srt"}, "stream"),
        ({"timestamp_granularities[]": "letter"}, "timestamp_granularities"),
        ({"timestamp_granularities[]": "segment"}, "timestamp_granularities"),
        ({"include[]": "logprobs"}, "include[]"),
        ({"chunking_strategy": "server_vad"}, "chunking_strategy"),
        ({"prompt": "x" * 9000}, "prompt"),
        ({"language": "x" * 40}, "language"),
        ({"nope": "1"}, "nope"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(
    fields: dict[str, str], param: str, http: httpx.AsyncClient
):
    reply = await ask(http, **fields)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param


async def test_a_body_that_is_no_form_is_refused(http: httpx.AsyncClient):
    for body in ({"content": b"{}"}, {"data": {"model": MODEL}}):
        reply = await http.post(TRANSCRIPTIONS, **body)  # pyright: ignore[reportArgumentType]
        assert reply.status_code == 400
    texts = {"file": (None, b"x"), "model": (None, MODEL.encode())}
    reply = await http.post(TRANSCRIPTIONS, files=texts)
    assert reply.json()["error"]["param"] == "file"
    twice = [("file", ("a.wav", b"x")), ("model", (None, b"a")), ("model", (None, b"b"))]
    assert (await http.post(TRANSCRIPTIONS, files=twice)).status_code == 400


async def test_a_sound_may_be_larger_than_other_bodies_and_no_larger_than_its_bound(
    connect: Connect,
):
    small = connect(GatewayConfig(max_body_bytes=1000))
    assert (await ask(small, sound=b"x" * 5000)).status_code == 200
    reply = await ask(small, sound=b"x" * (SOUND_BYTES + (1 << 20)))
    assert reply.status_code == 413
    assert "shorter sound" in reply.json()["error"]["message"]
    assert (await ask(small, sound=b"x" * (SOUND_BYTES + 1))).status_code == 400
