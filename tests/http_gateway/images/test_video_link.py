"""Videos in the bodies of OpenAI's chats reach the cell as they were sent, or are refused."""

from __future__ import annotations

import base64
from typing import Any

import httpx

from http_gateway.images.image_link import VIDEO_TYPES
from sax.chat import Message, Video
from tests.each_case import each_case
from tests.http_gateway.fake_cell import FakeCell

FILE = b"\0\0\0\x18ftypmp42"
DATA = base64.b64encode(FILE).decode()


def body(part: dict[str, Any], role: str = "user") -> dict[str, Any]:
    parts = [{"type": "text", "text": "See:"}, part]
    return {"model": "smollm2", "messages": [{"role": role, "content": parts}]}


def video(url: object = f"data:video/mp4;base64,{DATA}", **own: object) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": url} | own}


@each_case("kind", VIDEO_TYPES)
async def test_a_video_reaches_the_cell_with_its_place(
    kind: str, http: httpx.AsyncClient, cell: FakeCell
) -> None:
    asked = body(video(f"data:{kind};base64,{DATA}"))
    reply = await http.post("/v1/chat/completions", json=asked)
    assert reply.status_code == 200, reply.text
    content = ("See:", Video(FILE, "messages[0].content[1]"))
    assert cell.requests[-1].prompt == (Message("user", content),)
    assert (await http.post("/tokenize", json=asked)).status_code == 200


async def test_frames_with_commas_between_them_are_a_video(
    http: httpx.AsyncClient, cell: FakeCell
) -> None:
    frames = [b"\xff\xd8one", b"\xff\xd8two!"]
    text = ",".join(base64.b64encode(each).decode() for each in frames)
    asked = body(video(f"data:video/jpeg;base64,{text}"))
    reply = await http.post("/v1/chat/completions", json=asked)
    assert reply.status_code == 200, reply.text
    content = ("See:", Video.of_frames(frames, "messages[0].content[1]"))
    assert cell.requests[-1].prompt == (Message("user", content),)


async def test_videos_are_heard_if_the_body_asks_for_it(
    http: httpx.AsyncClient, cell: FakeCell
) -> None:
    frames = base64.b64encode(b"\xff\xd8one").decode()
    for part in (video(), video(f"data:video/jpeg;base64,{frames}")):
        for asks in (True, False, None):
            kwargs = {"mm_processor_kwargs": {"use_audio_in_video": asks}}
            reply = await http.post("/v1/chat/completions", json=body(part) | kwargs)
            assert reply.status_code == 200, reply.text
            (message,) = cell.requests[-1].prompt
            assert isinstance(message, Message)
            (sent,) = message.images
            assert isinstance(sent, Video)
            assert sent.heard is bool(asks)
            assert (await http.post("/tokenize", json=body(part) | kwargs)).status_code == 200


@each_case(
    "kwargs, name",
    [
        ({"fps": 1}, "mm_processor_kwargs.fps"),
        ({"use_audio_in_video": 1}, "mm_processor_kwargs.use_audio_in_video"),
        ({"use_audio_in_video": True, "max_pixels": 9}, "mm_processor_kwargs.max_pixels"),
    ],
)
async def test_what_else_processors_take_is_refused_by_name(
    kwargs: dict[str, Any], name: str, http: httpx.AsyncClient, cell: FakeCell
) -> None:
    for path in ("/v1/chat/completions", "/tokenize"):
        reply = await http.post(path, json=body(video()) | {"mm_processor_kwargs": kwargs})
        assert reply.status_code == 400, reply.text
        assert reply.json()["error"]["param"] == name
    text = {"model": "smollm2", "prompt": "a", "mm_processor_kwargs": {"use_audio_in_video": True}}
    assert (await http.post("/tokenize", json=text)).status_code == 400
    assert not cell.requests


@each_case(
    "part, name",
    [
        (video("data:image/png;base64,AAAA"), "messages[0].content[1]"),
        (video("data:video/mp4;base64,A"), "messages[0].content[1]"),
        (video("data:video/jpeg;base64,AAAA,A"), "messages[0].content[1]"),
        (video("ftp://example.org/a.mp4"), "messages[0].content[1].video_url.url"),
        (video(None), "messages[0].content[1].video_url.url"),
        (video("https://example.org/a.mp4"), "messages[0].content[1]"),  # no host is listed
        (video(fps=1), "messages[0].content[1].video_url.fps"),
        ({"type": "video_url"}, "messages[0].content[1].video_url"),
    ],
)
async def test_what_is_no_video_is_refused_by_its_place(
    part: dict[str, Any], name: str, http: httpx.AsyncClient, cell: FakeCell
) -> None:
    reply = await http.post("/v1/chat/completions", json=body(part))
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == name
    assert not cell.requests


async def test_only_users_send_videos(http: httpx.AsyncClient, cell: FakeCell) -> None:
    reply = await http.post("/v1/chat/completions", json=body(video(), "system"))
    assert reply.status_code == 400
    assert "messages[0].content[1].type" in reply.text
