"""What a gpt-oss config.json means beyond the golden cases, and its packed experts."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save_file

from model_server.checkpoints.opening import open_checkpoint
from model_server.checkpoints.packed import FLOAT4, e8m0_numbers, float4_numbers
from model_server.loading.weights import read_weights
from model_server.models.layers.activations import ClampedGate
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from model_server.models.weights.quantized import as_bytes
from model_server.models.weights.weight import Blueprint
from tests.golden.random_tensor import random_tensor
from tests.model_server.models.family_cases import F32, FAMILIES, config_of, golden_of
from tests.model_server.models.layer_shapes import decoder_of, windows_of
from tests.model_server.tiny import logits_of

CONFIG = config_of("gpt_oss")
# Whole blocks of 32 inputs in every matrix of an expert.
WIDE = CONFIG | {"hidden_size": 64, "intermediate_size": 32}
MXFP4 = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": []}}


def test_layers_with_windows_come_first_unless_the_config_says_otherwise() -> None:
    assert windows_of(CONFIG) == [8, None]
    plain = {key: value for key, value in CONFIG.items() if key != "layer_types"}
    assert windows_of(plain | {"num_hidden_layers": 3}) == [8, None, 8]


def test_the_gate_is_that_of_the_published_models_unless_the_config_says_otherwise() -> None:
    plain = {key: value for key, value in CONFIG.items() if key != "swiglu_limit"}
    experts = decoder_of(plain).layers[0].ffw.experts
    assert experts.activation == ClampedGate(7.0, 1.702)


def test_every_head_has_its_sink_also_where_heads_are_divided() -> None:
    declared = make_recipe("auto", CONFIG, {}).blueprint().declarations
    sinks = [each for each in declared if each.path.endswith("sinks")]
    assert [each.shape for each in sinks] == [(4,), (4,)]
    assert {str(each.dtype) for each in sinks} == {"float32"}


def test_packed_experts_stay_packed_unless_another_form_is_asked_for() -> None:
    """The experts, and all else is plain; routers and vectors are never quantised."""
    for quantize, kind in ((None, FLOAT4), ("stored", FLOAT4), ("int8", "int8")):
        overrides = {} if quantize is None else {"QUANTIZE": f'"{quantize}"'}
        module = _blueprint(make_recipe("auto", WIDE | MXFP4, overrides))
        assert {e.packing and e.packing.kind for e in module.declarations} == {kind, None}


def test_packed_experts_take_little_more_than_half_a_byte_a_number() -> None:
    module = _blueprint(make_recipe("auto", WIDE | MXFP4, {}))
    held = [each for each in module.declarations if each.packing and each.packing.kind == FLOAT4]
    numbers = sum(int(np.prod(each.shape)) for each in held)
    assert numbers == 2 * 3 * 6 * 64 * 32  # layers, matrices, experts
    rows = sum(int(np.prod(each.shape[:-1])) for each in held)
    in_tiles = (
        8 * rows if all(each.is_tiled for each in held) else 0
    )  # a unit of scales, of offsets
    assert sum(each.bytes for each in held) == numbers * (16 + 2) // 32 + in_tiles


def test_packed_experts_give_what_their_numbers_give(tmp_path: Path) -> None:
    plain, packed = _checkpoints(tmp_path)
    wanted, found = _logits(plain), _logits(packed)
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max(), rtol=1e-5)


def _blueprint(recipe: Any) -> Blueprint:
    return recipe.blueprint()


def _checkpoints(folder: Path) -> tuple[Path, Path]:
    """One checkpoint with MXFP4 experts, and one with the same numbers as transformers has them."""
    plain, packed = {}, {}
    for name, shape in _shapes().items():
        numbers = random_tensor(name, tuple(shape))
        if not name.endswith((".gate_up_proj", ".down_proj")):
            plain[name] = packed[name] = numbers
            continue
        experts, inputs, outputs = shape
        bits = np.random.default_rng(len(name) + outputs).integers(
            0, 16, (experts, outputs, inputs // 32, 32), np.uint8
        )
        scales = np.full(bits.shape[:3], 124, np.uint8) + np.uint8(np.arange(inputs // 32) % 2)
        packed[f"{name}_blocks"] = bits[..., ::2] | bits[..., 1::2] << 4
        packed[f"{name}_scales"] = scales
        wide = float4_numbers(bits) * e8m0_numbers(scales)[..., None]
        plain[name] = np.ascontiguousarray(wide.reshape(experts, outputs, inputs).swapaxes(1, 2))
    return _folder(folder / "plain", WIDE, plain), _folder(folder / "packed", WIDE | MXFP4, packed)


def _shapes() -> dict[str, list[int]]:
    """Shapes of an unpacked checkpoint of WIDE, from those of the golden case."""
    ffw = CONFIG["intermediate_size"]
    sizes = {CONFIG["hidden_size"]: 64, ffw: 32, 2 * ffw: 64}
    stored = json.loads((FAMILIES / "gpt_oss" / "tensors.json").read_text())
    return {name: [sizes.get(size, size) for size in shape] for name, shape in stored.items()}


def _folder(folder: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def _logits(folder: Path) -> np.ndarray:
    with closing(open_checkpoint(str(folder))) as checkpoint:
        recipe = make_recipe("auto", checkpoint.config, F32)
        assert isinstance(recipe, Recipe)
        module = recipe.blueprint(checkpoint=checkpoint)
        leaves = read_weights(module.declarations, checkpoint, lambda _: None)

    def run(held: list[jax.Array]) -> jax.Array:
        return logits_of(module.assemble(held), recipe, golden_of("gpt_oss")["prompt"])

    held = [as_bytes(leaf) for leaf in leaves]  # as a program takes them
    return np.asarray(jax.jit(run)(held))
