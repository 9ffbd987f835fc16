"""Pax checkpoints of Saxml's classes give the logits of Praxis' layers, however they were saved."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from model_server.checkpoints.opening import open_checkpoint
from model_server.loading.weights import read_weights
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from model_server.models.weights.sharding import layout_of
from model_server.plan.checkpoint.convert import convert
from sax.errors import CheckpointError
from tests.model_server.checkpoints.pax_writer import (
    STEP,
    WRITERS,
    Variables,
    write_arrays,
    write_zarr,
)
from tests.model_server.checkpoints.tiny_folder import tokenizer_json
from tests.model_server.tiny import logits_of
from tests.processes import on_devices
from tests.tools.golden.pax.cases import CASES, PaxCase
from tests.tools.golden.pax.model import logits_of as reference_logits
from tests.tools.golden.pax.model import prompt_of, variables_of

ROOT = Path(__file__).parents[5]
ON_MESH = "tests.model_server.checkpoints.orbax.pax.on_mesh"
GOLDEN = ROOT / "tests" / "golden" / "pax"
BY_NAME = {case.name: case for case in CASES}
F32 = {"DTYPE": '"float32"'}
# By day each kind of model once, and each way of saving.
QUICK = {
    ("llama", "flax leaves"),
    ("llama3_grouped_stacked_bfloat16", "arrays"),
    ("gptj", "database"),
    ("gemma_2b", "flax tree"),
    ("lm_cloud_stacked", "arrays"),
    ("c4_stacked_bfloat16", "flax leaves"),
}
GRID = [
    pytest.param(name, way, marks=[] if (name, way) in QUICK else pytest.mark.nightly)
    for name in BY_NAME
    for way in WRITERS
]


def loaded(path: Path, case: PaxCase, mesh: tuple[int, int, int]) -> tuple[Any, Recipe]:
    """The model on a mesh: the way the server loads it."""
    with closing(open_checkpoint(str(path))) as checkpoint:
        recipe = make_recipe(
            case.path, checkpoint.config, F32 | {"ICI_MESH_SHAPE": "[1,1,1]"} | case.overrides
        )
        assert isinstance(recipe, Recipe)
        layout = layout_of(mesh).placed()
        module = recipe.blueprint(layout, checkpoint)
        leaves = read_weights(module.declarations, checkpoint, lambda _: None, layout)
    return module.assemble(leaves), recipe


def assert_golden(path: Path, case: PaxCase) -> None:
    model, recipe = loaded(path, case, (1, 1, 1))

    def run(model: Any) -> jax.Array:
        return logits_of(model, recipe, prompt_of(case))

    assert_close(np.asarray(jax.jit(run)(model)), case)


def assert_close(found: np.ndarray, case: PaxCase) -> None:
    with np.load(GOLDEN / f"{case.name}.npz") as golden:
        assert golden["prompt"].tolist() == prompt_of(case).tolist()
        wanted = golden["logits"]
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max(), rtol=1e-4)


@pytest.mark.parametrize(("name", "way"), GRID)
def test_logits_equal_those_of_praxis(tmp_path: Path, name: str, way: str) -> None:
    case = BY_NAME[name]
    write: Callable[..., Path] = WRITERS[way]
    assert_golden(write(tmp_path, variables_of(case)), case)


def test_the_oldest_layout_has_no_items(tmp_path: Path) -> None:
    case = BY_NAME["llama"]
    assert_golden(write_arrays(tmp_path, variables_of(case), item=None), case)


def test_padding_of_uneven_meshes_is_cut_off(tmp_path: Path) -> None:
    case = BY_NAME["c4"]
    assert_golden(write_arrays(tmp_path, variables_of(case), padding=3), case)


@pytest.mark.nightly
def test_each_device_of_a_mesh_reads_its_part(tmp_path: Path) -> None:
    """In a process of its own: the number of devices is fixed before jax starts."""
    results = tmp_path / "logits.npz"
    command = [sys.executable, "-m", ON_MESH, str(results)]
    subprocess.run(command, env=on_devices(2), cwd=ROOT, check=True, timeout=280)
    with np.load(results) as found:
        for case in CASES:
            assert_close(found[case.name], case)


@pytest.mark.parametrize("to", ["huggingface", "orbax"])
def test_what_convert_makes_of_it_gives_the_same_logits(tmp_path: Path, to: str) -> None:
    case = BY_NAME["c4"]
    write_arrays(tmp_path, variables_of(case))
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    convert(str(tmp_path), str(tmp_path / "made"), to=to)
    assert_golden(tmp_path / "made", case)


def test_convert_takes_from_the_class_what_the_sizes_do_not_say(tmp_path: Path) -> None:
    case = BY_NAME["llama"]
    write_arrays(tmp_path, variables_of(case))
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    with pytest.raises(CheckpointError, match="--model-path"):
        convert(str(tmp_path), str(tmp_path / "made"))
    overrides = dict(case.overrides.items())
    convert(str(tmp_path), str(tmp_path / "made"), model_path=case.path, overrides=overrides)
    shutil.rmtree(tmp_path / STEP)
    with closing(open_checkpoint(str(tmp_path / "made"))) as checkpoint:
        assert checkpoint.config["rms_norm_eps"] == 1e-5
        assert checkpoint.config["num_hidden_layers"] == case.layers
    assert_golden(tmp_path / "made", case)


# A name's end -> the axes that are summed over, counted from the last.
_SUMMED = {
    "combined_qkv.w": (-3,),
    "query.w": (-3,),
    "post.w": (-2, -1),
    "linear.w": (-2,),
    "emb_var": (-1,),
    "softmax.w": (-1,),
}


def _quantized(variables: Variables, case: PaxCase) -> tuple[Variables, Variables]:
    """Variables as Saxml's quantiser stores them in 8 bits, and what they then stand for."""
    stored, meant = dict(variables), dict(variables)
    for path, values in variables.items():
        ends = [axes for end, axes in _SUMMED.items() if path.endswith(end)]
        if path.endswith(("key.w", "value.w")):  # without an axis for an only head
            ends = [(-2,) if case.kv_heads == 1 else (-3,)]
        if not ends or "position" in path:
            continue
        wide = values.astype(np.float32)
        scale = np.abs(wide).max(ends[0], keepdims=True) / 127
        stored[path] = np.rint(wide / scale).astype(np.int8)
        stored[f"{path}_quantized_scale"] = scale.squeeze(ends[0])
        meant[path] = stored[path].astype(np.float32) * scale
    return stored, meant


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=[] if name in ("llama", "lm_cloud_stacked") else pytest.mark.nightly
        )
        for name in BY_NAME
    ],
)
def test_int8_weights_are_dequantised_as_they_are_read(tmp_path: Path, name: str) -> None:
    case = BY_NAME[name]
    stored, meant = _quantized(variables_of(case), case)
    model, recipe = loaded(write_arrays(tmp_path, stored), case, (1, 1, 1))
    prompt = prompt_of(case)

    def run(model: Any) -> jax.Array:
        return logits_of(model, recipe, prompt)

    wanted = reference_logits(case, meant, prompt)
    found = np.asarray(jax.jit(run)(model))
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max(), rtol=1e-4)


def test_scales_of_another_shape_are_named(tmp_path: Path) -> None:
    case = BY_NAME["llama"]
    stored = dict(_quantized(variables_of(case), case)[0])
    path = "transformer.x_layers_1.self_attention.post.w_quantized_scale"
    stored[path] = np.ones((2, 16), np.float32)  # of parts of a channel
    with pytest.raises(CheckpointError, match=r"post\.w_quantized_scale is \[2, 16\].*\[16\]"):
        open_checkpoint(str(write_arrays(tmp_path, stored)))


def test_zero_points_are_refused_by_name(tmp_path: Path) -> None:
    step = write_arrays(tmp_path, variables_of(BY_NAME["llama"]))
    name = "mdl_vars.params.lm.transformer.x_layers_0.self_attention.post.w_quantized_zp"
    write_zarr(step / "state" / name, np.ones(16, np.float32))
    with pytest.raises(CheckpointError, match=r"zero points.*post\.w_quantized_zp.*QUANTIZE"):
        open_checkpoint(str(step))
