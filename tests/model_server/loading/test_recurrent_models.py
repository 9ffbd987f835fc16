"""The real loader on models whose layers keep a state: plan, pages, compiled steps, answers."""

from __future__ import annotations

import json
import math
import queue
from contextlib import closing
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any

import jax
import pytest
from safetensors.numpy import save_file

from model_server.checkpoints.checkpoint_view import without_prefixes
from model_server.checkpoints.media_part import is_media
from model_server.checkpoints.opening import open_checkpoint
from model_server.config import ModelServerConfig
from model_server.engine.engine import Engine, SequenceUpdate
from model_server.loading.deployment import Deployment, deploy
from model_server.loading.loader import make_loader
from model_server.loading.memory_plan import FreeMemory
from model_server.loading.weights import read_weights
from model_server.models.registry import make_recipe
from model_server.models.weights.sharding import layout_of
from sax.errors import InvalidRequest
from sax.types import ModelSpec
from tests.golden.random_tensor import random_tensor
from tests.model_server.checkpoints.tiny_folder import VOCAB, tokenizer_json
from tests.model_server.loading.loads import quiet, spec_of
from tests.model_server.loading.test_loader import answer
from tests.model_server.models.family_cases import FAMILIES, config_of
from tests.model_server.tiny import WholeSequences

F32 = {"DTYPE": '"float32"'}
# The fourth has layers that keep nothing, the last some that choose the tokens they attend to.
MORE = ("mamba2", "qwen3_next", "qwen4_exp", "nemotron_h", "glm5_next")
CONFIG = ModelServerConfig(slots=2, page_size=16, prefix_cache="tenant")


def folder_of(name: str, folder: Path, **changes: Any) -> str:
    """A golden case's checkpoint, with rows for a tokenizer's tokens and a config with changes.

    It holds no encoders: the tokenizer makes no tokens of images.
    """
    config = config_of(name)
    text = config.get("text_config", config)
    shapes = json.loads((FAMILIES / name / "tensors.json").read_text())
    tensors = {
        tensor: random_tensor(tensor, tuple(VOCAB if d == text["vocab_size"] else d for d in dims))
        for tensor, dims in shapes.items()
        if not is_media(tensor, config.get("model_type"))
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    keys = ("vocab_size", "vocab_size_per_layer_input")
    sizes = {key: VOCAB for key in keys if text.get(key) == text["vocab_size"]}
    made = config | sizes if text is config else config | {"text_config": text | sizes}
    (folder / "config.json").write_text(json.dumps(made | changes))
    (folder / "tokenizer.json").write_text(tokenizer_json())
    return str(folder)


def whole(checkpoint: str) -> WholeSequences:
    with closing(open_checkpoint(checkpoint)) as opened:
        recipe: Any = make_recipe("auto", opened.config, F32)
        module = recipe.blueprint(checkpoint=opened)
        needed = without_prefixes(opened, recipe.unused)
        leaves = read_weights(module.declarations, needed, lambda _: None)
    return WholeSequences(module.assemble(leaves), recipe, 64)


def spec(checkpoint: str, **overrides: str) -> ModelSpec:
    return spec_of(checkpoint, **F32 | {"MAX_CONTEXT": "128"} | overrides)


@pytest.mark.parametrize(
    "name",
    ["lfm2", *(pytest.param(n, marks=pytest.mark.nightly) for n in MORE)],
)
def test_a_loaded_model_gives_the_tokens_of_whole_sequences(name: str, tmp_path: Path) -> None:
    checkpoint = folder_of(name, tmp_path)
    loader = make_loader(CONFIG)
    loaded = loader(spec(checkpoint), quiet)
    before = loader.compiles_while_serving()
    updates: queue.Queue[SequenceUpdate] = queue.Queue()
    runner: Any = loaded.runner

    def deliver(batch: list[SequenceUpdate]) -> None:
        for update in batch:
            updates.put(update)

    engine = Engine(runner, deliver)
    prompt = tuple(range(50))
    try:
        answers = [answer(engine, updates, prompt) for _ in range(2)]
        stats = engine.stats()
        assert loader.compiles_while_serving() == before
    finally:
        engine.close()
    wanted = whole(checkpoint).greedy(prompt, 6)
    assert answers == [wanted, wanted]
    assert stats.prefix_hits == 48, "the second one begins behind three pages"


def test_a_draft_model_with_states_is_refused_when_the_model_is_loaded(tmp_path: Path) -> None:
    checkpoint = folder_of("lfm2", tmp_path)
    asked = spec(checkpoint, SPECULATION='"draft"', DRAFT_MODEL=json.dumps(checkpoint))
    with pytest.raises(InvalidRequest, match="the draft model keeps a state"):
        make_loader(CONFIG)(asked, quiet)


def test_states_behind_draft_tokens_are_planned_unless_there_are_none() -> None:
    def planned(**overrides: str) -> Deployment:
        recipe: Any = make_recipe("auto", config_of("lfm2"), F32 | overrides)
        config = replace(CONFIG, page_size=64)
        return deploy(recipe, None, layout_of().placed(), config, FreeMemory(2**40, 0))

    off, tries = planned(SPECULATION='"off"'), planned(MAX_GUESSES="5")
    window_layers = off.window_layers(2)
    state = sum(compress(off.layer_bytes(64), window_layers))
    assert (off.limits.draft_states, tries.limits.draft_states) == (0, 5)
    assert tries.memory.kv - off.memory.kv == 5 * state
    for made in (off, tries):
        shapes = jax.tree.leaves(made.pool_shapes)
        assert sum(4 * math.prod(each.shape) for each in shapes) == made.memory.kv
