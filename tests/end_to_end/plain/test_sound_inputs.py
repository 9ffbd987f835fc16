"""Sounds through a whole cell: every door's answer is that of the whole model, computed apart."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

import sax
from sax.proto import multimodal_pb2
from tests.end_to_end.cell import Cell
from tests.end_to_end.hearing_model import CASE, GEMMAS, VOXTRAL, hearing_model
from tests.model_server.models.media.media_cases import images_of, kinds_of, load_media, parts_of
from tests.model_server.models.media.media_runs import WholePrompts, places_in, seen

AUDIO = "/sax/test/audio"
TOKENS = 4


@cache
def file_of(number: int, case: str = CASE) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, images_of(case)[number], 16_000, format="WAV", subtype="PCM_16")
    return file.getvalue()


@pytest.fixture(scope="module")
def cell_with_audio(cell: Cell, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    folder = hearing_model(tmp_path_factory.mktemp("model") / "audio")
    overrides = {"MAX_CONTEXT": 128, "DTYPE": "float32", "NUM_CACHE_SLOTS": 2}
    cell.publish(str(folder), model=AUDIO, model_path="auto", overrides=overrides)
    yield cell
    cell.sax("unpublish", AUDIO)


def sound(number: int, case: str = CASE) -> dict[str, Any]:
    data = base64.b64encode(file_of(number, case)).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def image(number: int, case: str) -> dict[str, Any]:
    file = io.BytesIO()
    Image.fromarray(images_of(case)[number]).save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def messages(*order: int, case: str = CASE) -> list[dict[str, Any]]:
    kinds, parts = kinds_of(case), [{"type": "text", "text": "Hear"}]
    parts += [(image if kinds[each] == "image" else sound)(each, case) for each in order]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "?"}]}]


def post(cell: Cell, path: str, model: str = AUDIO, **body: Any) -> Any:
    reply = cell.http.post(path, json={"model": model, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def chat(cell: Cell, asked: list[dict[str, Any]], model: str = AUDIO) -> list[int]:
    """The tokens of the greedy answer."""
    settings = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
    body = {"messages": asked, "return_token_ids": True, **settings}
    return post(cell, "/v1/chat/completions", model, **body)["choices"][0]["token_ids"]


def whole_answer(ids: list[int], *order: int, case: str = CASE) -> list[int]:
    """What the whole model answers to these tokens and sounds."""
    decoder, encoder, recipe = load_media(case)
    media = recipe.media
    files = parts_of(media, case, order)
    assert places_in(media, np.asarray(ids)).sum() == sum(each.rows for each in files)
    model = WholePrompts(decoder, media, seen(encoder, media, files), files, len(ids) + TOKENS)
    made = [*ids]
    for _ in range(TOKENS):
        made.append(int(model.logits(np.asarray(made))[-1].argmax()))
    return made[len(ids) :]


@pytest.mark.parametrize("order", [(0,), (1,), (1, 0)])
def test_a_chat_about_sounds_is_the_whole_models(
    cell_with_audio: Cell, order: tuple[int, ...]
) -> None:
    asked = messages(*order)
    ids = post(cell_with_audio, "/tokenize", messages=asked)["tokens"]
    assert chat(cell_with_audio, asked) == whole_answer(ids, *order)


@pytest.mark.nightly
@pytest.mark.parametrize("case", [VOXTRAL, *GEMMAS])
def test_a_chat_about_sounds_of_other_kinds_of_models_is_the_whole_models(
    cell: Cell, tmp_path: Path, case: str
) -> None:
    """Of several windows (Voxtral); with tokens around a sound that no template writes (Gemma), and
    images around it (Gemma 4)."""
    order = (3, 1, 0) if "image" in kinds_of(case) else (1, 0)
    model, asked = f"/sax/test/{case}", messages(*order, case=case)
    folder = hearing_model(tmp_path / case, case)
    context = 128 if case == "gemma3n" else 256
    overrides = {"MAX_CONTEXT": context, "DTYPE": "float32", "NUM_CACHE_SLOTS": 2}
    cell.publish(str(folder), model=model, model_path="auto", overrides=overrides)
    ids = post(cell, "/tokenize", model, messages=asked)["tokens"]
    assert chat(cell, asked, model) == whole_answer(ids, *order, case=case)
    cell.sax("unpublish", model)


def test_every_door_hears_the_same_sound(
    cell_with_audio: Cell, saxml_of: Callable[[Cell], None], tmp_path: Path
) -> None:
    file = tmp_path / "sound.wav"
    file.write_bytes(file_of(0))
    asked = [{"role": "user", "content": [sound(0), {"type": "text", "text": "?"}]}]
    settings = {"temperature": 0, "max_tokens": TOKENS}
    reply = post(cell_with_audio, "/v1/chat/completions", messages=asked, **settings)
    said = reply["choices"][0]["message"]["content"]
    limit = f"--max-tokens={TOKENS}"
    command = cell_with_audio.sax("generate", AUDIO, "?", "--audio", str(file), limit)
    assert command.stdout == f"{said}\n", command.stderr
    saxml_of(cell_with_audio)
    samples = multimodal_pb2.AudioFloatSamples(sample=images_of(CASE)[0].tolist())
    items = [multimodal_pb2.DataItem(audio_float_samples=samples)]
    request = multimodal_pb2.GenerateRequest(items=[*items, multimodal_pb2.DataItem(text="?")])
    options = sax.ModelOptions()
    options.SetExtraInput("temperature", 0)
    options.SetExtraInput("per_example_max_decode_steps", TOKENS)
    found = sax.Model(AUDIO).MM().Generate(request, options)
    assert found.results[0].items[0].text == said


def _refused(cell: Cell, part: dict[str, Any]) -> dict[str, Any]:
    asked = [{"role": "user", "content": [{"type": "text", "text": "?"}, part]}]
    body = {"model": AUDIO, "messages": asked, "max_tokens": TOKENS}
    reply = cell.http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 400, reply.text
    return reply.json()["error"]


def test_what_is_no_sound_or_too_long_is_refused_by_its_place(cell_with_audio: Cell) -> None:
    damaged = sound(0)
    damaged["input_audio"]["data"] = base64.b64encode(b"RIFF no sound").decode()
    error = _refused(cell_with_audio, damaged)
    assert error["param"] == "messages[0].content[1]"
    assert "the sound" in error["message"]
    file = io.BytesIO()
    soundfile.write(file, np.zeros(40_000), 16_000, format="WAV")
    long = sound(0)
    long["input_audio"]["data"] = base64.b64encode(file.getvalue()).decode()
    error = _refused(cell_with_audio, long)
    assert error["param"] == "messages[0].content[1]"
    assert "at most 1 s" in error["message"]
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    error = _refused(cell_with_audio, url)
    assert error["param"] == "messages[0].content[1]"
    assert "is an image, and this model takes texts and sounds" in error["message"]
