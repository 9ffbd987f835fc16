"""The real loader on models with image input: plan, tokens, compiled encoder, answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from model_server.config import ModelServerConfig
from model_server.loading.loaded import Loaded
from model_server.loading.loader import ModelLoader, make_loader
from sax.errors import CheckpointError, MemoryPlanError
from sax.types import ModelSpec
from tests.model_server.loading.loads import quiet, spec_of
from tests.model_server.loading.media.image_folder import CASE, folder_of
from tests.model_server.loading.media.image_requests import answered, check, request_of, whole_of
from tests.tools.golden.media.gemma3 import START

CONFIG = ModelServerConfig(slots=2, page_size=16, prefix_cache="tenant")
F32 = {"DTYPE": '"float32"'}


def spec(checkpoint: str, **overrides: str) -> ModelSpec:
    return spec_of(checkpoint, **F32 | {"MAX_CONTEXT": "128"} | overrides)


def loaded_of(loader: ModelLoader, checkpoint: str, **overrides: str) -> Loaded:
    made = loader(spec(checkpoint, **overrides), quiet)
    assert isinstance(made, Loaded)
    return made


def test_a_loaded_model_answers_about_images_as_the_whole_one_does(tmp_path: Path) -> None:
    """Beside each other, and with images in the other order. Nothing is compiled meanwhile."""
    media, encoder, wanted = whole_of(CASE)
    loader = make_loader(CONFIG)
    checkpoint = folder_of(tmp_path)
    loaded = loaded_of(loader, checkpoint, MEDIA_ROWS="8")
    before = loader.compiles_while_serving()
    asked = request_of(CASE, media)
    turned = request_of(CASE, media, (1, 0))
    found, again, other = answered(loaded.runner, asked, asked, turned)
    assert loader.compiles_while_serving() == before
    check(found, wanted)
    check(again, wanted)
    assert not np.allclose(other.scores, wanted.scores, atol=1e-3), "each image in its own place"
    blind = loaded_of(loader, checkpoint, IMAGES="false")
    held = sum(leaf.nbytes for leaf in _leaves(encoder))
    assert loaded.parts.weights - blind.parts.weights == held, "what sees is part of the plan"
    assert loaded.parts.workspace - blind.parts.workspace > 8 * 48 * 4, "and the buffer"
    assert loaded.runner.limits.media is not None
    assert blind.runner.limits.media is None
    blind.runner.close()


def _leaves(module: Any) -> list[Any]:
    return jax.tree.leaves(module)


def test_a_model_that_does_not_fit_says_what_images_take(tmp_path: Path) -> None:
    small = ModelServerConfig(slots=2, page_size=16, memory_limit_bytes=70 << 20)
    checkpoint = folder_of(tmp_path)
    with pytest.raises(MemoryPlanError, match="are for images: .*IMAGES=false.*lower MEDIA_ROWS"):
        make_loader(small)(spec(checkpoint, MEDIA_ROWS="100000"), quiet)


def test_a_tokenizer_that_does_not_know_an_images_tokens_is_refused(tmp_path: Path) -> None:
    checkpoint = folder_of(tmp_path, {START: "<start_of_image>"})
    with pytest.raises(CheckpointError, match="makes 0 tokens 264 .*which has 4.*IMAGES=false"):
        make_loader(CONFIG)(spec(checkpoint), quiet)


def test_tensors_of_what_sees_that_do_not_fit_are_named(tmp_path: Path) -> None:
    checkpoint = folder_of(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["vision_config"]["num_hidden_layers"] = 3
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="in the vision encoder, .*lacks .*layers.2.*IMAGES"):
        make_loader(CONFIG)(spec(checkpoint), quiet)
