"""New weights of a model that keeps them as a GGUF file stores them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from model_server.checkpoints.packed import Packing
from model_server.config import ModelServerConfig
from model_server.models.weights.quantization import fits
from model_server.plan.checkpoint.convert import convert
from model_server.serving.sampler import SampledAnswer, Sampler
from tests.model_server.checkpoints.tiny_folder import write_tiny

CONFIG = ModelServerConfig(slots=2, page_size=16, max_context=64, kv_cache_bytes=1 << 20)
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "head_dim": 32,
}  # whole blocks
PROMPTS = [(3, 5, 8, 13), (21, 34)]


def answers(sampler: Sampler) -> list[SampledAnswer]:
    return [each._replace(weights=()) for each in sampler.sample(PROMPTS, max_tokens=6)]


def after(sampler: Sampler, source: Any) -> list[SampledAnswer]:
    sampler.update_weights(source)
    return answers(sampler)


def loaded(checkpoint: object, **overrides: str) -> list[SampledAnswer]:
    with Sampler(str(checkpoint), overrides=overrides, config=CONFIG) as sampler:
        return answers(sampler)


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_stored_weights_change_to_those_of_another_file_and_of_a_folder(tmp_path: Path) -> None:
    """Those of a file as they lie, to the last bit; those of a folder and arrays quantised in the
    model's own form."""
    old, new = write_tiny(tmp_path / "old", **SIZES), write_tiny(tmp_path / "new", **SIZES)
    arrays = {name: a[::-1].copy() for name, a in load_file(new / "model.safetensors").items()}
    save_file(arrays, new / "model.safetensors")
    for folder, dtype in ((old, "q8_0"), (new, "q8_0"), (new, "q4_0")):
        convert(str(folder), f"{folder}-{dtype}.gguf", dtype=dtype)
    stored = {"QUANTIZE": '"stored"'}
    wanted = [loaded(f"{each}-q8_0.gguf", **stored) for each in (new, old)]
    plain = loaded(new)
    with Sampler(f"{old}-q8_0.gguf", overrides=stored, config=CONFIG) as sampler:
        found = [after(sampler, f"{each}-q8_0.gguf") for each in (new, old)]
        from_folder, given = after(sampler, str(new)), after(sampler, arrays)
        narrow = after(sampler, f"{new}-q4_0.gguf")
    assert found == wanted
    assert from_folder == given
    firsts = [each[0].logprobs[0] for each in (from_folder, plain)]
    np.testing.assert_allclose(*firsts, atol=0.1)
    assert len({str(each) for each in (*found, given, narrow)}) == 4, "some changes change nothing"


def test_what_a_form_holds_is_taken_as_it_is_and_all_else_is_quantised_again() -> None:
    rows, blocks = Packing("int4", None, offset=False), Packing("int8", 32, offset=True)
    assert fits(rows, blocks, 64)
    assert fits(replace(blocks, block=64), blocks, 64)
    for unlike in (rows, replace(blocks, kind="int4"), replace(blocks, offset=False)):
        assert not fits(blocks, unlike, 64)
    assert not fits(replace(blocks, block=16), blocks, 64)
