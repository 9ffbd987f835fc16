"""Images through a whole cell: every API's answer is that of the whole model, computed apart."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import sax
from sax.proto import multimodal_pb2
from tests.end_to_end.cell import Cell
from tests.end_to_end.vision_model import CASE, vision_model
from tests.model_server.models.media.media_cases import images_of, load_media, parts_of
from tests.model_server.models.media.media_runs import WholePrompts, seen

VISION = "/sax/test/vision"
TOKENS = 4


@cache
def file_of(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(images_of(CASE)[number]).save(file, "PNG")
    return file.getvalue()


def url(number: int) -> str:
    return f"data:image/png;base64,{base64.b64encode(file_of(number)).decode()}"


@pytest.fixture(scope="module")
def cell_with_vision(cell: Cell, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    folder = vision_model(tmp_path_factory.mktemp("model") / "vision")
    overrides = {"MAX_CONTEXT": 128, "DTYPE": "float32", "NUM_CACHE_SLOTS": 2}
    cell.publish(str(folder), model=VISION, model_path="auto", overrides=overrides)
    yield cell
    cell.sax("unpublish", VISION)


def messages(*order: int) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "text", "text": "See"}]
    parts += [{"type": "image_url", "image_url": {"url": url(number)}} for number in order]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "?"}]}]


def post(cell: Cell, path: str, **body: Any) -> Any:
    reply = cell.http.post(path, json={"model": VISION, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def chat(cell: Cell, *order: int) -> list[int]:
    """The tokens of the greedy answer."""
    settings = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
    asked = {"messages": messages(*order), "return_token_ids": True, **settings}
    return post(cell, "/v1/chat/completions", **asked)["choices"][0]["token_ids"]


def whole_answer(ids: list[int], *order: int) -> list[int]:
    """The whole model's answer to these tokens and images."""
    decoder, encoder, recipe = load_media(CASE)
    media = recipe.media
    files = parts_of(media, CASE, order)
    model = WholePrompts(decoder, media, seen(encoder, media, files), files, len(ids) + TOKENS)
    made = [*ids]
    for _ in range(TOKENS):
        made.append(int(model.logits(np.asarray(made))[-1].argmax()))
    return made[len(ids) :]


@pytest.mark.parametrize("order", [(0,), (1,), (1, 0)])
def test_a_chat_about_images_is_the_whole_models(
    cell_with_vision: Cell, order: tuple[int, ...]
) -> None:
    ids = post(cell_with_vision, "/tokenize", messages=messages(*order))["tokens"]
    assert ids.count(264) == 4 * len(order)
    assert chat(cell_with_vision, *order) == whole_answer(ids, *order)


def test_every_api_sees_the_same_image(
    cell_with_vision: Cell, saxml_of: Callable[[Cell], None], tmp_path: Path
) -> None:
    data = url(0).partition(",")[2]
    file = tmp_path / "image.png"
    file.write_bytes(file_of(0))
    settings = {"temperature": 0, "max_tokens": TOKENS}
    parts: list[Any] = [{"type": "image_url", "image_url": {"url": url(0)}}]
    parts.append({"type": "text", "text": "?"})
    asked = [{"role": "user", "content": parts}]
    reply = post(cell_with_vision, "/v1/chat/completions", messages=asked, **settings)
    said = reply["choices"][0]["message"]["content"]
    source = {"type": "base64", "media_type": "image/png", "data": data}
    blocks = [{"type": "image", "source": source}, {"type": "text", "text": "?"}]
    turn = {"role": "user", "content": blocks}
    body = post(cell_with_vision, "/v1/messages", messages=[turn], **settings)
    assert "".join(block["text"] for block in body["content"]) == said
    turn = {"role": "user", "content": "?", "images": [data]}
    options = {"temperature": 0, "num_predict": TOKENS}
    body = post(cell_with_vision, "/api/chat", messages=[turn], options=options, stream=False)
    assert body["message"]["content"] == said
    limit = f"--max-tokens={TOKENS}"
    command = cell_with_vision.sax("generate", VISION, "?", "--image", str(file), limit)
    assert command.stdout == f"{said}\n", command.stderr
    saxml_of(cell_with_vision)
    items = [multimodal_pb2.DataItem(image_bytes=file_of(0)), multimodal_pb2.DataItem(text="?")]
    request = multimodal_pb2.GenerateRequest(items=items)
    found = sax.Model(VISION).MM().Generate(request)
    assert found.results[0].items[0].text
