"""Data URLs hold the bytes that they stand for, whole, however long."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest

from http_gateway.images.image_link import ImageLink, decoded
from sax.chat import Message, Sound
from sax.errors import InvalidRequest
from sax.fields.table import IMAGE_BYTES
from tests.each_case import each_case
from tests.http_gateway.fake_cell import FakeCell

HEAD = "data:image/jpeg;base64,"


@each_case("size", [0, 1, 2, 3, 393_215, 393_216, 393_217, 1_000_000])
def test_an_image_of_any_size_is_decoded(size: int) -> None:
    data = bytes(n % 251 for n in range(size))
    url = HEAD + base64.b64encode(data).decode()
    assert decoded(ImageLink(b"", "x", url)).data == data


@each_case("text", ["A", "AA=A", "A A=", "AAA", "AA==AAAA", "é", "A" * 524_286 + "==AAAA"])
def test_damaged_base64_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="x is damaged base64"):
        decoded(ImageLink(b"", "x", HEAD + text))


FILE = b"RIFF sound"
DATA = base64.b64encode(FILE).decode()


def body(part: dict[str, Any], role: str = "user") -> dict[str, Any]:
    parts = [{"type": "text", "text": "Hear:"}, part]
    return {"model": "smollm2", "messages": [{"role": role, "content": parts}]}


def sound(**own: object) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"} | own}


@each_case("form", ["wav", "mp3", "flac", "ogg", "opus"])
async def test_a_sound_reaches_the_cell_with_its_place(
    form: str, http: httpx.AsyncClient, cell: FakeCell
) -> None:
    reply = await http.post("/v1/chat/completions", json=body(sound(format=form)))
    assert reply.status_code == 200, reply.text
    content = ("Hear:", Sound(FILE, "messages[0].content[1]"))
    assert cell.requests[-1].prompt == (Message("user", content),)
    assert isinstance(cell.requests[-1].prompt[0].content[1], Sound)  # pyright: ignore
    assert (await http.post("/tokenize", json=body(sound()))).status_code == 200


@each_case(
    "part, name",
    [
        (sound(format="midi"), "messages[0].content[1].input_audio.format"),
        (sound(format=None), "messages[0].content[1].input_audio.format"),
        (sound(data=5), "messages[0].content[1].input_audio.data"),
        (sound(data="A"), "messages[0].content[1]"),
        (sound(rate=1), "messages[0].content[1].input_audio.rate"),
        ({"type": "input_audio"}, "messages[0].content[1].input_audio"),
    ],
)
async def test_what_is_no_sound_is_refused_by_its_place(
    part: dict[str, Any], name: str, http: httpx.AsyncClient, cell: FakeCell
) -> None:
    reply = await http.post("/v1/chat/completions", json=body(part))
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == name
    assert not cell.requests


async def test_a_sound_that_is_too_large_is_refused(
    http: httpx.AsyncClient, cell: FakeCell
) -> None:
    large = base64.b64encode(bytes(IMAGE_BYTES + 100)).decode()
    reply = await http.post("/v1/chat/completions", json=body(sound(data=large)))
    assert reply.status_code in (400, 413), reply.text
    assert not cell.requests


async def test_only_users_send_sounds(http: httpx.AsyncClient, cell: FakeCell) -> None:
    reply = await http.post("/v1/chat/completions", json=body(sound(), "system"))
    assert reply.status_code == 400
    assert "messages[0].content[1].type" in reply.text
