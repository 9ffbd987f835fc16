"""Videos through a whole cell: the answer is that of the whole model, computed apart."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_server.loading.images.prepared import PreparedImage, with_digest
from model_server.models.media.media_recipe import DecodedVideo
from model_server.sharing.videos.worker import prepared
from tests.end_to_end.cell import Cell
from tests.model_server.loading.media.image_folder import GEMMA_4, folder_of
from tests.model_server.models.media.media_cases import load_media
from tests.model_server.models.media.media_runs import WholePrompts, places_in, seen
from tests.model_server.video_files import video_file
from tests.tools.golden.media.gemma3 import IMAGES_4, VIDEO_4
from tests.tools.golden.media.qwen import END, START, TOKEN, VIDEO

pytestmark = pytest.mark.nightly

GEMMA = "gemma4"
CASES = ("qwen2_5_vl_video", "qwen3_vl_video", GEMMA)
TOKENS = 4
CONTROL = {
    START: "<|vision_start|>",
    END: "<|vision_end|>",
    TOKEN: "<|image_pad|>",
    VIDEO: "<|video_pad|>",
}
# Looks for the types of parts, as the published models' templates do.
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{% elif part['type'] == 'video' %}{{ '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
# The published one writes a video's one token, for the processor to expand.
GEMMA_TEMPLATE = TEMPLATE.replace("<|vision_start|><|video_pad|><|vision_end|>", "<|video|>")


@cache
def file_of() -> bytes:
    return video_file(9, width=32, height=24, rate=3)


def video(data: bytes) -> dict[str, Any]:
    url = f"data:video/mp4;base64,{base64.b64encode(data).decode()}"
    return {"type": "video_url", "video_url": {"url": url}}


def messages(data: bytes) -> list[dict[str, Any]]:
    parts = [{"type": "text", "text": "See"}, video(data), {"type": "text", "text": "?"}]
    return [{"role": "user", "content": parts}]


@pytest.fixture(params=CASES)
def case(cell: Cell, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "model"
    tokens, template = (GEMMA_4, GEMMA_TEMPLATE) if request.param == GEMMA else (CONTROL, TEMPLATE)
    folder_of(folder, tokens, request.param)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    overrides = {"MAX_CONTEXT": 256, "DTYPE": "float32", "NUM_CACHE_SLOTS": 2}
    cell.publish(
        str(folder), model=f"/sax/test/{request.param}", model_path="auto", overrides=overrides
    )
    yield request.param
    cell.sax("unpublish", f"/sax/test/{request.param}")


def post(cell: Cell, case: str, path: str, **body: Any) -> Any:
    reply = cell.http.post(path, json={"model": f"/sax/test/{case}", **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def whole_answer(case: str, ids: list[int]) -> list[int]:
    """What the whole model answers to these tokens and the video."""
    decoder, encoder, recipe = load_media(case)
    media, parts = recipe.media, prepared_parts(case)
    assert places_in(media, np.asarray(ids)).sum() == sum(part.rows for part in parts)
    model = WholePrompts(decoder, media, seen(encoder, media, parts), parts, len(ids) + TOKENS)
    made = [*ids]
    for _ in range(TOKENS):
        made.append(int(model.logits(np.asarray(made))[-1].argmax()))
    return made[len(ids) :]


def prepared_parts(case: str) -> list[PreparedImage]:
    recipe = load_media(case)[2].media[0].video
    assert recipe is not None
    found = prepared(file_of(), recipe.form)
    frames = np.frombuffer(found.frames, np.uint8).reshape(-1, found.height, found.width, 3)
    video = DecodedVideo(frames, found.indices, found.rate, found.total)
    return [with_digest(part, "") for part in recipe.prepare(video).parts]


def test_a_chat_about_a_video_is_the_whole_models(cell: Cell, case: str, tmp_path: Path) -> None:
    asked = messages(file_of())
    ids = post(cell, case, "/tokenize", messages=asked)["tokens"]
    parts = prepared_parts(case)
    begin, end, token = (START, END, VIDEO) if case != GEMMA else (*IMAGES_4[::2], VIDEO_4)
    assert ids.count(token) == sum(part.rows for part in parts)
    # Each pair of a model that tells times has marks; of others all pairs together have them.
    marks = len(parts) if "0" in parts[0].text else 1
    assert ids.count(begin) == ids.count(end) == marks
    settings = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
    body = {"messages": asked, "return_token_ids": True, **settings}
    reply = post(cell, case, "/v1/chat/completions", **body)["choices"][0]
    assert reply["token_ids"] == whole_answer(case, ids)
    _check_refused(cell, case)
    file = tmp_path / "video.mp4"
    file.write_bytes(file_of())
    found = cell.sax("generate", f"/sax/test/{case}", "?", "--video", str(file), "--max-tokens=2")
    assert found.returncode == 0, found.stderr


def _check_refused(cell: Cell, case: str) -> None:
    """A torn video, and a picture that is called one, are named by their places."""
    for data, text in ((file_of()[:-300], "damaged"), (b"\x89PNG\r\n", "is not a MP4")):
        body = {"model": f"/sax/test/{case}", "messages": messages(data), "max_tokens": 2}
        reply = cell.http.post("/v1/chat/completions", json=body)
        assert reply.status_code == 400, reply.text
        assert reply.json()["error"]["param"] == "messages[0].content[1]"
        assert text in reply.json()["error"]["message"]
