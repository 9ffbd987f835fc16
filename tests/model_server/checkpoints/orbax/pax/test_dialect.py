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
from tests.model_server.checkpoints.bucket_server import BucketServer
from tests.model_server.checkpoints.pax_writer import (
    STEP,
    WRITERS,
    Variables,
    write_arrays,
    write_zarr,
)
from tests.model_server.checkpoints.tiny_folder import tokenizer_json, write_json
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
_EXTENDED = pytest.mark.extended
# Each kind of model once, and each way of saving; the rest of the grid is extended.
QUICK = {
    ("llama", "flax leaves"),
    ("llama3_grouped_stacked_bfloat16", "arrays"),
    ("gptj", "database"),
    ("gemma_2b", "flax tree"),
    ("lm_cloud_stacked", "arrays"),
    ("c4_stacked_bfloat16", "flax leaves"),
}
GRID = [
    pytest.param(name, way, marks=[] if (name, way) in QUICK else pytest.mark.extended)
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


def test_metadata_of_other_shapes_is_refused_by_name(tmp_path: Path) -> None:
    step = write_arrays(tmp_path, variables_of(BY_NAME["llama"]))
    file = step / "metadata" / "metadata"
    file.write_text(file.read_text().replace("[61, 16]", "[62, 16]"))
    with pytest.raises(CheckpointError, match=r"emb_var is stored as \[61, 16\].*\[62, 16\]"):
        open_checkpoint(str(step))
    file.write_text("{")
    with pytest.raises(CheckpointError, match="metadata is not JSON"):
        open_checkpoint(str(step))


def test_chunks_that_dwarf_their_array_are_refused(tmp_path: Path) -> None:
    step = write_arrays(tmp_path, variables_of(BY_NAME["llama"]))
    file = step / "state" / "mdl_vars.params.lm.final_ln.scale" / ".zarray"
    file.write_text(file.read_text().replace('"chunks": [8]', '"chunks": [800000000]'))
    with pytest.raises(CheckpointError, match=r"final_ln\.scale is \[16\] in chunks of"):
        open_checkpoint(str(step))


@pytest.mark.parametrize("scheme", ["gs", pytest.param("s3", marks=pytest.mark.extended)])
def test_buckets_are_read_in_place(
    bucket_server: BucketServer, tmp_path: Path, scheme: str
) -> None:
    case = BY_NAME["lm_cloud_stacked"]
    place = bucket_server.root / "bucket" / "run"
    step = write_arrays(place, variables_of(case))
    (step / "commit_success.txt").touch()
    (place / "tokenizer.json").write_text(tokenizer_json())
    write_arrays(tmp_path, variables_of(case))
    with closing(open_checkpoint(f"{scheme}://bucket/run/{STEP}")) as there:
        assert there.tokenizer().encode("he")
        with closing(open_checkpoint(str(tmp_path))) as here:
            assert sorted(there.names()) == sorted(here.names())
            for name in here.names()[::5]:
                np.testing.assert_array_equal(there.read(name), here.read(name))


@pytest.mark.extended
def test_each_device_of_a_mesh_reads_its_part(tmp_path: Path) -> None:
    """In a process of its own: the number of devices is fixed before jax starts."""
    results = tmp_path / "logits.npz"
    command = [sys.executable, "-m", ON_MESH, str(results)]
    subprocess.run(command, env=on_devices(2), cwd=ROOT, check=True, timeout=280)
    with np.load(results) as found:
        for case in CASES:
            assert_close(found[case.name], case)


def test_every_folder_of_the_checkpoint_may_be_named(tmp_path: Path) -> None:
    case = BY_NAME["llama"]
    step = write_arrays(tmp_path, variables_of(case))
    for path in (tmp_path, step, step / "state"):
        with closing(open_checkpoint(str(path))) as checkpoint:
            assert checkpoint.format == "pax"
            assert checkpoint.dtype("model.norm.weight") == "float32"


def test_a_region_of_the_queries_is_scaled_as_the_whole(tmp_path: Path) -> None:
    case = BY_NAME["lm_cloud_stacked"]
    with closing(open_checkpoint(str(write_arrays(tmp_path, variables_of(case))))) as checkpoint:
        name = "layers.1.qkv.kernel"
        whole = checkpoint.read(name)
        width = case.heads * case.head_dim
        assert whole.shape == (3 * width, case.embed)
        for rows in (slice(7, 20), slice(width - 3, width + 4), slice(2 * width, 3 * width)):
            region = (rows, slice(2, 9))
            np.testing.assert_array_equal(checkpoint.read(name, region), whole[region])
            out = np.zeros((rows.stop - rows.start, 7), np.float32)
            checkpoint.read(name, region, out)
            np.testing.assert_array_equal(out, whole[region])


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


def test_only_its_class_is_served_from_sizes_alone(tmp_path: Path) -> None:
    case = BY_NAME["llama"]
    with closing(open_checkpoint(str(write_arrays(tmp_path, variables_of(case))))) as checkpoint:
        for path in ("auto", "llama"):
            with pytest.raises(CheckpointError, match="publish it as its class"):
                make_recipe(path, checkpoint.config, {})
        with pytest.raises(CheckpointError, match="NUM_LAYERS is 2 but LLaMA13B has 40"):
            make_recipe(case.path.replace("7BFP16", "13B"), checkpoint.config, {})
        other = "saxml.server.pax.lm.params.gptj.GPTJ"
        with pytest.raises(CheckpointError, match="of model_type 'gptj', not 'llama'"):
            make_recipe(other, checkpoint.config, {})


def test_a_config_beside_it_counts_and_must_be_of_its_kind(tmp_path: Path) -> None:
    step = write_arrays(tmp_path, variables_of(BY_NAME["llama"]))
    write_json(step / "config.json", {"model_type": "llama", "rope_theta": 5.0})
    with closing(open_checkpoint(str(step))) as checkpoint:
        assert checkpoint.config["rope_theta"] == 5.0
    write_json(step / "config.json", {"model_type": "gemma"})
    with pytest.raises(CheckpointError, match=r"those of Llama.*config\.json.*'gemma'"):
        open_checkpoint(str(step))


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
        pytest.param(name, marks=[] if name in ("llama", "lm_cloud_stacked") else _EXTENDED)
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


def test_a_damaged_chunk_is_named(tmp_path: Path) -> None:
    step = write_arrays(tmp_path, variables_of(BY_NAME["llama"]))
    (step / "state" / "mdl_vars.params.lm.embedding_lookup.emb_var" / "0.0").write_bytes(b"no gzip")
    where = r"model\.embed_tokens\.weight.*emb_var.*damaged"
    with (
        closing(open_checkpoint(str(step))) as checkpoint,
        pytest.raises(CheckpointError, match=where),
    ):
        checkpoint.read("model.embed_tokens.weight")
