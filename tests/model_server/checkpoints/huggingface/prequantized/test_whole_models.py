"""A model of quantised weights computes what one of the numbers that they stand for computes.

A Llama in every form, and one family of every other structure (experts, latents, states, windows,
images, encoders) in one form of each layout.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from model_server.checkpoints.opening import open_checkpoint
from model_server.loading.weights import read_weights
from model_server.models.layers.embedder import EmbedRecipe
from model_server.models.registry import make_recipe
from model_server.models.weights.quantized import as_bytes
from model_server.plan.checkpoint.inspect import inspect
from sax.errors import InvalidRequest
from tests.model_server.checkpoints.huggingface.prequantized.tiny_quantised import (
    FORMS,
    forms_of,
    write_both,
    write_quantised,
)
from tests.model_server.models.family_cases import config_of, golden_of, load_whole, tensors_of
from tests.model_server.tiny import logits_of

PROMPT = np.array([1, 17, 42, 8, 99, 3, 120])
KEPT = {  # kind and columns of a block of what "stored" holds
    "gptq": ("int4", 32),
    "gptq_3_bits": ("int4", 32),
    "awq": ("int4", 32),
    "w4a16": ("int4", 32),
    "w8a8": ("int8", None),
    "nvfp4": ("int8", 16),
    "mxfp4": ("float4_e2m1fn", 32),
    "fp8": ("float8_e4m3fn", 32),
    "fp8_rows": ("float8_e4m3fn", None),
    "modelopt": ("int8", 16),
}
EACH = [  # by day one whose columns are sorted, and one of float4
    pytest.param(form, marks=[] if form in ("gptq_sorted", "nvfp4") else pytest.mark.nightly)
    for form in FORMS
]
STORED = [  # by day one in blocks, and one whose products are in int8
    pytest.param(form, marks=[] if form in ("nvfp4", "w8a8") else pytest.mark.nightly)
    for form in FORMS
    if form in KEPT
]


def run(folder: Path, **overrides: str) -> tuple[np.ndarray, set[Any]]:
    """Logits, and how its matrices are held."""
    with closing(open_checkpoint(str(folder))) as checkpoint:
        recipe: Any = make_recipe("auto", checkpoint.config, {"DTYPE": '"float32"', **overrides})
        module = recipe.blueprint(checkpoint=checkpoint)
        read = read_weights(module.declarations, checkpoint, lambda _: None)
    leaves = [as_bytes(leaf) for leaf in read]
    held = {each.packing for each in module.declarations if len(each.shape) == 2}

    def logits(leaves: list[jax.Array]) -> jax.Array:
        return logits_of(module.assemble(leaves), recipe, PROMPT)

    found = np.asarray(jax.jit(logits)(leaves))
    return found, {packing and (packing.kind, packing.block) for packing in held}


@pytest.mark.parametrize("form", EACH)
def test_logits_are_those_of_the_numbers(form: str, tmp_path: Path) -> None:
    quantised, plain = write_quantised(form, tmp_path)
    wanted, _ = run(plain)
    found, held = run(quantised)
    assert held == {None}
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max(), rtol=1e-5)


@pytest.mark.parametrize("form", STORED)
def test_logits_are_those_of_the_numbers_if_weights_are_held_as_stored(
    form: str, tmp_path: Path
) -> None:
    quantised, plain = write_quantised(form, tmp_path)
    wanted, _ = run(plain)
    found, held = run(quantised, QUANTIZE='"stored"')
    assert held == {None, KEPT[form]}
    # Whole rows of int8 are multiplied by activations in int8.
    loss = 1e-3 if form == "w8a8" else 1e-5
    np.testing.assert_allclose(found, wanted, atol=loss * np.abs(wanted).max(), rtol=loss)


def test_sorted_columns_cannot_be_held_as_stored(tmp_path: Path) -> None:
    quantised, _ = write_quantised("gptq_sorted", tmp_path)
    with pytest.raises(InvalidRequest, match=r'"stored".*has none that can be kept'):
        run(quantised, QUANTIZE='"stored"')


@pytest.mark.parametrize("form", EACH)
def test_a_quantised_folder_passes_inspection(form: str, tmp_path: Path) -> None:
    report = inspect(str(write_quantised(form, tmp_path)[0]))
    assert report.problems == []
    assert ("stored" in report.memory) == (form in KEPT)


# --- families of other structures

GROUP = 8  # columns, which divide those of the cases
BLOCKS = {"nvfp4": 16}
STRUCTURES = ("qwen3_moe", "deepseek_v3", "qwen3_next", "falcon_h1", "gemma3", "qwen2_5_vl", "bert")
LAYOUTS = ("gptq", "awq", "w8a8", "nvfp4", "fp8", "fp8_rows")
# Left as they are by those who quantise; the last four are no linear layers.
PLAIN = ("lm_head", "visual", "router", ".gate.", "shared_expert_gate")
PLAIN += ("embed", "norm", "conv1d", "Norm")
BY_STRUCTURE = [  # by day one of experts, and one of layers that keep a state
    pytest.param(name, form, marks=[] if (name, form) in by_day else pytest.mark.nightly)
    for by_day in [{("qwen3_moe", "awq"), ("falcon_h1", "nvfp4")}]
    for name in STRUCTURES
    for form in LAYOUTS
]


@pytest.mark.parametrize(("name", "form"), BY_STRUCTURE)
def test_a_quantised_family_has_the_weights_and_logits_of_the_numbers(
    name: str, form: str, tmp_path: Path
) -> None:
    quantised, plain = write_family(name, form, tmp_path)
    prompt = golden_of(name)["prompt"]
    wanted, full = computed(plain, prompt)
    _, widened = computed(quantised, None)
    for each, found in zip(full, widened, strict=True):
        np.testing.assert_allclose(found, each, rtol=1e-5, atol=1e-6)
    if name == "bert":  # encoders widen what is stored
        with pytest.raises(InvalidRequest, match="unknown override 'QUANTIZE'"):
            computed(quantised, prompt, QUANTIZE='"stored"')
        return
    found, kept = computed(quantised, prompt, QUANTIZE='"stored"')
    assert len(kept) > len(full), "no weight has scales"
    loss = 2e-3 if form == "w8a8" else 1e-5
    np.testing.assert_allclose(found, wanted, atol=loss * np.abs(wanted).max(), rtol=loss)


def write_family(name: str, form: str, place: Path) -> tuple[Path, Path]:
    """Write a case with its linear layers in the form, and one of the same numbers in float32."""
    settings, pack = forms_of(GROUP)[form]
    weights, quantised, plain = tensors_of(name), place / form, place / "plain"
    packs = packing(weights, BLOCKS.get(form, GROUP))
    left = [each.removesuffix(".weight") for each in weights if not packs(each)]
    for folder in (quantised, plain):
        folder.mkdir()
    ignored = {"modules_to_not_convert" if form in ("fp8", "awq") else "ignore": left}
    config = config_of(name)
    (plain / "config.json").write_text(json.dumps(config))
    config["quantization_config"] = settings | ignored
    (quantised / "config.json").write_text(json.dumps(config))
    write_both(quantised, plain, weights, pack, packs)
    return quantised, plain


def packing(weights: dict[str, np.ndarray], columns: int) -> Callable[[str], bool]:
    """Return whether a weight is quantised: words hold eight rows, or blocks so many columns."""

    def packs(name: str) -> bool:
        linear = name.endswith(".weight") and not any(part in name for part in PLAIN)
        shape = weights[name].shape
        return linear and len(shape) == 2 and not shape[0] % 8 and not shape[1] % columns

    return packs


def computed(
    folder: Path, prompt: np.ndarray | None, **overrides: str
) -> tuple[np.ndarray, list[jax.Array]]:
    """Return logits, or what an encoder finds, and the weights."""
    recipe, module, leaves = load_whole(folder, **overrides)

    def run(leaves: list[jax.Array]) -> Any:
        model = module.assemble(leaves)
        if isinstance(recipe, EmbedRecipe):
            return model(prompt[None], np.array([len(prompt)]))
        return logits_of(model, recipe, prompt)

    found = np.zeros(0) if prompt is None else np.asarray(jax.tree.leaves(jax.jit(run)(leaves))[0])
    return found, leaves
