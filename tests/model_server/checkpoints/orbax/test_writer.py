"""What is written is a checkpoint to Orbax too."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore as ts
from safetensors.numpy import save_file

from model_server.checkpoints.opening import open_checkpoint
from model_server.plan.checkpoint.convert import convert
from sax.errors import CheckpointError
from tests.model_server.checkpoints.orbax_trees import flax_llama, save, with_config
from tests.model_server.checkpoints.tiny_folder import CONFIG, random_weights, write_tiny

WEIGHTS = random_weights(CONFIG)


@pytest.fixture
def written(folder: Path, tmp_path: Path) -> Path:
    """The tiny checkpoint in Orbax's form."""
    convert(str(folder), str(tmp_path / "orbax"), to="orbax")
    return tmp_path / "orbax"


def test_orbax_restores_it_as_arrays_by_name(written: Path) -> None:
    for checkpointer in (ocp.PyTreeCheckpointer(), ocp.StandardCheckpointer()):
        with warnings.catch_warnings(), checkpointer:
            warnings.simplefilter("ignore")
            restored = checkpointer.restore(written)
        assert restored.keys() == WEIGHTS.keys()
        for name, values in WEIGHTS.items():
            np.testing.assert_array_equal(restored[name], values)


def test_orbax_restores_it_into_a_sharding(written: Path) -> None:
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    wanted = {
        name: jax.ShapeDtypeStruct(values.shape, values.dtype, sharding=device)
        for name, values in WEIGHTS.items()
    }
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(written, wanted)
    for name, values in WEIGHTS.items():
        assert restored[name].sharding == device
        np.testing.assert_array_equal(restored[name], values)


REGIONS = (
    (slice(2049, 2052), slice(1024, 1027)),
    (slice(0, 4100), slice(0, 2050)),
    (slice(1000, 4000), slice(0, 2050)),
    (slice(0, 3000), slice(1025, 2050)),
    (slice(10, 4000), slice(3, 2001, 7)),
    (slice(7, 7), slice(0, 2050)),
)


@pytest.mark.parametrize("compressed", [False, True], ids=["as written here", "as by Orbax"])
def test_parts_of_a_matrix_larger_than_a_chunk_come_back(tmp_path: Path, compressed: bool) -> None:
    """Uncompressed ones are read from the files; of compressed ones chunks are decoded once."""
    config = CONFIG | {"vocab_size": 4100, "hidden_size": 2050}
    folder = write_tiny(tmp_path / "a", vocab_size=4100, hidden_size=2050)
    before = open_checkpoint(str(folder))
    if compressed:
        tensors = {name: before.read(name) for name in before.names()}
        with_config(save(tmp_path / "b", tensors), config)
    else:
        convert(str(folder), str(tmp_path / "b"), to="orbax")
    after, name = open_checkpoint(str(tmp_path / "b")), "model.embed_tokens.weight"
    np.testing.assert_array_equal(after.read(name), before.read(name))
    for region in REGIONS:
        wanted = before.read(name)[region]
        np.testing.assert_array_equal(after.read(name, region), wanted)
        for dtype in (np.float32, np.float64):
            out = np.full(wanted.shape, np.nan, dtype)
            np.testing.assert_array_equal(after.read(name, region, out), wanted)
            wide = np.full((*wanted.shape, 2), np.nan, dtype)[..., 0]  # not contiguous
            np.testing.assert_array_equal(after.read(name, region, wide), wanted)


@pytest.mark.parametrize("inline", [0, 10_000], ids=["in files", "in the tree"])
def test_uncompressed_arrays_are_read_whatever_their_layout(tmp_path: Path, inline: int) -> None:
    """Rows from the files or from the database's tree, kernels [in, out] through tensorstore."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(flax_llama(WEIGHTS))
    arrays = {".".join(key.key for key in keys): np.asarray(leaf) for keys, leaf in leaves}
    for name, values in arrays.items():
        store = {"driver": "ocdbt", "base": f"file://{tmp_path}/", "path": f"{name}/"}
        config = {"max_inline_value_bytes": inline}
        chunks = [-(-size // 2) for size in values.shape]
        spec = {
            "driver": "zarr",
            "kvstore": store | {"config": config},
            "metadata": {"chunks": chunks, "compressor": None},
        }
        made = ts.open(spec, create=True, dtype=values.dtype.name, shape=values.shape).result()
        made.write(values).result()
    checkpoint = open_checkpoint(str(with_config(tmp_path, CONFIG)))
    for name, values in WEIGHTS.items():
        np.testing.assert_array_equal(checkpoint.read(name), values)
        region = tuple(slice(1, size - 1) for size in values.shape)
        np.testing.assert_array_equal(checkpoint.read(name, region), values[region])


@pytest.mark.parametrize("left", [0.5, None], ids=["truncated", "missing"])
def test_a_damaged_file_is_named_with_its_tensor(written: Path, left: float | None) -> None:
    checkpoint, name = open_checkpoint(str(written)), "model.embed_tokens.weight"
    largest = max((written / "d").iterdir(), key=lambda file: file.stat().st_size)
    body = largest.read_bytes()
    largest.unlink()
    if left is not None:
        largest.write_bytes(body[: int(len(body) * left)])
    with pytest.raises(CheckpointError, match=rf"{re.escape(name)}.*truncated or damaged"):
        checkpoint.read(name)


def test_zeros_are_written_and_not_left_out(tmp_path: Path) -> None:
    """The metadata says so, hence what is not there would be read as a damage."""
    folder = write_tiny(tmp_path / "a")
    zeros = {name: np.zeros_like(values) for name, values in WEIGHTS.items()}
    save_file(zeros, folder / "model.safetensors")
    convert(str(folder), str(tmp_path / "b"), to="orbax")
    checkpoint = open_checkpoint(str(tmp_path / "b"))
    for name, values in zeros.items():
        np.testing.assert_array_equal(checkpoint.read(name), values)


def test_many_tensors_take_little_more_room_than_their_numbers(tmp_path: Path) -> None:
    """Each is a change of the database, which must not be written anew every time."""
    folder = write_tiny(tmp_path / "a")
    many = WEIGHTS | {f"more.{n}.weight": np.ones((16, 16), np.float32) for n in range(300)}
    save_file(many, folder / "model.safetensors")
    convert(str(folder), str(tmp_path / "b"), to="orbax")
    taken = sum(file.stat().st_size for file in (tmp_path / "b" / "d").iterdir())
    assert taken < sum(values.nbytes for values in many.values()) + 300 * 2 * 12_000
