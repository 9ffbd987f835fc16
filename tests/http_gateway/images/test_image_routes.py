"""Images in the bodies of every API family reach the cell as they were sent, or are refused."""

from __future__ import annotations

import base64
from typing import Any

import httpx

from http_gateway.config import GatewayConfig
from sax.chat import Image, Message
from sax.fields.table import IMAGE_BYTES
from tests.each_case import each_case
from tests.http_gateway.conftest import Connect
from tests.http_gateway.fake_cell import FakeCell

PICTURE = b"\x89PNG picture"
ENCODED = base64.b64encode(PICTURE).decode()
URL = f"data:image/png;base64,{ENCODED}"
MODEL = "smollm2"


def openai(*parts: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": role, "content": [*parts]}]}


def text(words: str = "Look:", kind: str = "text") -> dict[str, Any]:
    return {"type": kind, "text": words}


def image(url: object = URL, **more: object) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def block(**source: object) -> dict[str, Any]:
    return {"type": "image", "source": source}


def anthropic(*blocks: dict[str, Any]) -> dict[str, Any]:
    messages = [{"role": "user", "content": [*blocks]}]
    return {"model": MODEL, "max_tokens": 5, "messages": messages}


BASE64 = block(type="base64", media_type="image/png", data=ENCODED)
NAME = "messages[0].content[1]"
BODIES: list[tuple[str, dict[str, Any], tuple[object, ...]]] = [
    ("/v1/chat/completions", openai(text(), image()), ("Look:", Image(PICTURE, NAME))),
    (
        "/v1/chat/completions",
        openai(text(), image(detail="high"), text("?")),
        ("Look:", Image(PICTURE, NAME), "?"),
    ),
    ("/v1/messages", anthropic(text(), BASE64), ("Look:", Image(PICTURE, NAME))),
    (
        "/v1/messages",
        anthropic(text(), block(type="url", url=URL)),
        ("Look:", Image(PICTURE, NAME)),
    ),
    (
        "/v1/responses",
        {
            "model": MODEL,
            "input": [
                {
                    "role": "user",
                    "content": [
                        text(kind="input_text"),
                        {"type": "input_image", "image_url": URL, "detail": "auto"},
                    ],
                }
            ],
        },
        ("Look:", Image(PICTURE, "input[0].content[1]")),
    ),
    (
        "/api/chat",
        {
            "model": MODEL,
            "stream": False,
            "messages": [{"role": "user", "content": "Look:", "images": [ENCODED]}],
        },
        (Image(PICTURE, "messages[0].images[0]"), "Look:"),
    ),
    (
        "/api/generate",
        {"model": MODEL, "stream": False, "prompt": "Look:", "images": [ENCODED]},
        (Image(PICTURE, "images[0]"), "Look:"),
    ),
]


@each_case("path, body, content", BODIES)
async def test_an_image_reaches_the_cell_among_its_texts(
    path: str,
    body: dict[str, Any],
    content: tuple[object, ...],
    http: httpx.AsyncClient,
    cell: FakeCell,
) -> None:
    reply = await http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    assert cell.requests[-1].prompt == (Message("user", content),)  # pyright: ignore


async def test_tokens_of_images_are_counted_where_tokens_are(http: httpx.AsyncClient) -> None:
    reply = await http.post("/tokenize", json=openai(text(), image()))
    assert reply.status_code == 200
    body = anthropic(text(), BASE64)
    del body["max_tokens"]
    reply = await http.post("/v1/messages/count_tokens", json=body)
    assert reply.status_code == 200


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "/v1/chat/completions",
        openai(image(detail="low")),
        "messages[0].content[0].image_url.detail",
    ),
    ("/v1/chat/completions", openai(image("file:///etc/passwd")), "image_url.url"),
    ("/v1/chat/completions", openai(image(5)), "image_url.url"),
    ("/v1/chat/completions", openai(image("data:image/gif;base64,AAAA")), "messages[0].content[0]"),
    ("/v1/chat/completions", openai(image("data:image/png,AAAA")), "messages[0].content[0]"),
    ("/v1/chat/completions", openai(image("data:image/png;base64,A")), "messages[0].content[0]"),
    ("/v1/chat/completions", openai(image("https://example.com/a.png")), "messages[0].content[0]"),
    ("/v1/chat/completions", openai(image(), role="system"), "messages[0].content[0].type"),
    ("/v1/chat/completions", openai({"type": "input_video"}), "messages[0].content[0].type"),
    ("/v1/chat/completions", openai(*[image()] * 17), "messages"),
    (
        "/v1/chat/completions",
        openai({"type": "image_url", "image_url": {"url": URL, "size": 1}}),
        "messages[0].content[0].image_url.size",
    ),
    (
        "/v1/messages",
        anthropic(block(type="file", file_id="x")),
        "messages[0].content[0].source.type",
    ),
    ("/v1/messages", anthropic(block(type=[], data="x")), "messages[0].content[0].source.type"),
    (
        "/v1/messages",
        anthropic(block(type="base64", media_type="image/gif", data="AAAA")),
        "messages[0].content[0]",
    ),
    (
        "/v1/responses",
        {
            "model": MODEL,
            "input": [{"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}],
        },
        "input[0].content[0]",
    ),
    (
        "/api/chat",
        {"model": MODEL, "messages": [{"role": "assistant", "content": "x", "images": [ENCODED]}]},
        "messages[0].images",
    ),
    (
        "/api/generate",
        {"model": MODEL, "prompt": "x", "raw": True, "images": [ENCODED]},
        "images",
    ),
]


@each_case("path, body, name", REFUSED)
async def test_what_cannot_be_seen_is_refused_by_name(
    path: str, body: dict[str, Any], name: str, http: httpx.AsyncClient, cell: FakeCell
) -> None:
    reply = await http.post(path, json=body)
    assert reply.status_code == 400, reply.text
    assert name in reply.text
    assert not cell.requests


async def test_images_of_too_many_bytes_together_are_refused(connect: Connect) -> None:
    http = connect(GatewayConfig(max_body_bytes=64 << 20))
    half = base64.b64encode(bytes(IMAGE_BYTES // 2 + 1000)).decode()
    parts = [image(f"data:image/png;base64,{half}")] * 2
    reply = await http.post("/v1/chat/completions", json=openai(*parts))
    assert reply.status_code == 400
    assert "bytes; at most" in reply.text


async def test_images_of_the_most_bytes_pass_the_default_limit_of_a_body(
    http: httpx.AsyncClient, cell: FakeCell
) -> None:
    whole = base64.b64encode(bytes(IMAGE_BYTES)).decode()
    reply = await http.post(
        "/v1/chat/completions", json=openai(image(f"data:image/png;base64,{whole}"))
    )
    assert reply.status_code == 200, reply.text[:200]
    (message,) = cell.requests[-1].prompt
    assert isinstance(message, Message)
    assert len(message.images[0].data) == IMAGE_BYTES
