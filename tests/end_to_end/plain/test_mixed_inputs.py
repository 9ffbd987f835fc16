"""Images and sounds in one chat, through a whole cell: the answer is the whole model's."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from model_server.loading.images.image_reader import ImageReader
from model_server.loading.images.prepared import PreparedImage
from sax.chat import Video
from tests.end_to_end.cell import Cell
from tests.model_server.loading.media.image_folder import folder_of
from tests.model_server.loading.media.test_rows_and_tiles import MIXED
from tests.model_server.models.media.media_cases import images_of, load_media, parts_of
from tests.model_server.models.media.media_runs import WholePrompts, places_in, seen
from tests.model_server.video_files import video_file
from tests.tools.golden.media import omni

pytestmark = pytest.mark.nightly

CASE, MODEL, TOKENS = "qwen2_5_omni", "/sax/test/omni", 4
# Looks for types and keys of parts, as the published model's template does.
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' or 'image' in part %}"
    "{{ '<|vision_bos|><|IMAGE|><|vision_eos|>' }}"
    "{% elif part['type'] == 'audio' or 'audio' in part %}"
    "{{ '<|audio_bos|><|AUDIO|><|audio_eos|>' }}"
    "{% elif part['type'] == 'video' or 'video' in part %}"
    "{{ '<|vision_bos|><|VIDEO|><|vision_eos|>' }}"
    "{% elif 'text' in part %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def part(medium: np.ndarray) -> dict[str, Any]:
    """A part of an OpenAI message: a picture as PNG, a sound as WAV."""
    file = io.BytesIO()
    if medium.ndim == 1:
        soundfile.write(file, medium, 16_000, format="WAV", subtype="PCM_16")
        data = base64.b64encode(file.getvalue()).decode()
        return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    Image.fromarray(medium).save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def as_16_bits(samples: np.ndarray) -> np.ndarray:
    return (samples * 2**15).astype(np.int16)


def watched(video: bytes) -> dict[str, Any]:
    data = base64.b64encode(video).decode()
    return {"type": "video_url", "video_url": {"url": f"data:video/x-matroska;base64,{data}"}}


def read(video: Video) -> list[PreparedImage]:
    """The parts of a video as a server prepares it."""

    async def parts() -> list[PreparedImage]:
        (made,) = await ImageReader(load_media(CASE)[2].media).read([video])
        return [*made]

    return asyncio.run(parts())


def whole_answer(ids: list[int], order: list[int]) -> list[int]:
    return answer_to(ids, parts_of(load_media(CASE)[2].media, CASE, order))


def answer_to(ids: list[int], parts: list[PreparedImage]) -> list[int]:
    """What the whole model answers to these tokens and media."""
    decoder, encoders, recipe = load_media(CASE)
    media = recipe.media
    assert places_in(media, np.asarray(ids)).sum() == sum(each.rows for each in parts)
    model = WholePrompts(decoder, media, seen(encoders, media, parts), parts, len(ids) + TOKENS)
    made = [*ids]
    for _ in range(TOKENS):
        made.append(int(model.logits(np.asarray(made))[-1].argmax()))
    return made[len(ids) :]


def test_pictures_and_sounds_stand_in_one_chat_in_any_order(cell: Cell, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder_of(folder, MIXED, CASE)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    overrides = {"MAX_CONTEXT": 256, "DTYPE": "float32", "NUM_CACHE_SLOTS": 2}
    cell.publish(str(folder), model=MODEL, model_path="auto", overrides=overrides)

    def post(path: str, **body: Any) -> Any:
        reply = cell.http.post(path, json={"model": MODEL, **body})
        assert reply.status_code == 200, reply.text
        return reply.json()

    media = images_of(CASE)
    for order in ([0, 1], [1, 4, 3, 0]):
        parts = [part(media[number]) for number in order]
        asked = [{"role": "user", "content": [*parts, {"type": "text", "text": "?"}]}]
        ids = post("/tokenize", messages=asked)["tokens"]
        settings = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
        body = {"messages": asked, "return_token_ids": True, **settings}
        found = post("/v1/chat/completions", **body)["choices"][0]["token_ids"]
        assert found == whole_answer(ids, order), order
    video = video_file(
        9, rate=3, width=24, height=16, kind="matroska", sound=as_16_bits(images_of(CASE)[0])
    )
    content = [watched(video), {"type": "text", "text": "?"}]
    asked = [{"role": "user", "content": content}]
    for heard in (True, False):
        hears = {"mm_processor_kwargs": {"use_audio_in_video": heard}}
        ids = post("/tokenize", messages=asked, **hears)["tokens"]
        body = {"messages": asked, "return_token_ids": True, **settings, **hears}
        found = post("/v1/chat/completions", **body)["choices"][0]["token_ids"]
        assert found == answer_to(ids, read(Video(video, heard=heard)))
        assert (omni.SOUND in ids) == heard
    cell.sax("unpublish", MODEL)
