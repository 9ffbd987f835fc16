"""Weights come from the checkpoint or from a seed, quantised ones in any regions, and what does not
match is named.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from model_server.checkpoints.named_tensors import GivenArrays, NamedTensors, SingleTensorFile
from model_server.checkpoints.opening import open_checkpoint
from model_server.checkpoints.packed import PackedBlocks, Packing
from model_server.checkpoints.region import Region, deliver, whole
from model_server.kernels.aligned import BandMemory, SpareBlocks, WeightMemory
from model_server.kernels.cpu.tiles import plain_tiles
from model_server.loading.random_weights import random_weights
from model_server.loading.weights import PackedReader, read_weights
from model_server.models.registry import make_recipe
from model_server.models.weights.quantization import AsStored, Scheme, quantize
from model_server.models.weights.source import GroupRows, Joined, Tensor, WeightSource
from model_server.models.weights.weight import Blueprint, Declaration, blueprint, weight
from sax.errors import CheckpointError
from sax.types import Progress
from tests.model_server.models.family_cases import checkpoint_of


def tied() -> Path:
    return checkpoint_of("llama_tied")


def module_of(folder: Path) -> Blueprint:
    config = json.loads((folder / "config.json").read_text())
    return make_recipe("llama", config, {"DTYPE": '"float32"'}).blueprint()


def changed_copy(folder: Path, to: Path, **changes: np.ndarray | None) -> Path:
    """A copy of a checkpoint with tensors replaced, added or (None) left out."""
    tensors = load_file(folder / "model.safetensors") | {
        name.replace("__", "."): tensor for name, tensor in changes.items()
    }
    save_file({n: t for n, t in tensors.items() if t is not None}, to / "model.safetensors")
    (to / "config.json").write_text((folder / "config.json").read_text())
    return to


def read(folder: Path) -> list[np.ndarray]:
    with closing(open_checkpoint(str(folder))) as checkpoint:
        declared = module_of(tied()).declarations
        return [np.asarray(leaf) for leaf in read_weights(declared, checkpoint, lambda _: None)]


def test_joined_tensors_lie_one_after_the_other() -> None:
    stored = load_file(tied() / "model.safetensors")
    declared = module_of(tied()).declarations
    index = next(
        i for i, d in enumerate(declared) if d.path == "layers.1.attention.qkv.linears.0.kernel"
    )
    parts = [stored[f"model.layers.1.self_attn.{n}_proj.weight"] for n in "qkv"]
    np.testing.assert_array_equal(read(tied())[index], np.concatenate(parts))


def test_progress_counts_bytes_up_to_the_total() -> None:
    seen: list[Progress] = []
    declared = module_of(tied()).declarations
    with closing(open_checkpoint(str(tied()))) as checkpoint:
        read_weights(declared, checkpoint, seen.append)
    assert seen[0].done == 0
    assert seen[-1].done == seen[-1].total == sum(d.bytes for d in declared)
    assert [p.done for p in seen] == sorted(p.done for p in seen)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    folder = changed_copy(tied(), tmp_path, model__norm__weight=None)
    with pytest.raises(CheckpointError, match=r"lacks model\.norm\.weight"):
        read(folder)


def test_an_unknown_tensor_is_named(tmp_path: Path) -> None:
    folder = changed_copy(tied(), tmp_path, model__adapter__weight=np.ones(3, np.float32))
    with pytest.raises(CheckpointError, match=r"does not use: model\.adapter\.weight"):
        read(folder)


def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path) -> None:
    folder = changed_copy(tied(), tmp_path, model__norm__weight=np.ones(7, np.float32))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight is \[7\].*says \["):
        read(folder)


def test_random_weights_follow_the_seed_and_the_path() -> None:
    declared = module_of(tied()).declarations
    first = random_weights(declared, 1, lambda _: None)
    again = random_weights(declared, 1, lambda _: None)
    other = random_weights(declared, 2, lambda _: None)
    same = [bool(jnp.array_equal(a, b)) for a, b in zip(first, again, strict=True)]
    assert all(same)
    assert not all(bool(jnp.array_equal(a, b)) for a, b in zip(first, other, strict=True))


RNG = np.random.default_rng(2)
NUMBERS = {
    "q": RNG.normal(size=(8, 32)).astype(np.float32),
    "v": RNG.normal(size=(4, 32)).astype(np.float32),
}
FORMS = {"q": Packing("int4", 16, True), "v": Packing("int8", 8, False)}
PACKED = {name: quantize(NUMBERS[name], FORMS[name]) for name in NUMBERS}


class Packed:
    """A checkpoint of quantised tensors in memory that counts what it reads."""

    def __init__(self) -> None:
        self.reads: list[tuple[str, tuple[slice, ...]]] = []

    def shape(self, name: str) -> tuple[int, ...]:
        return NUMBERS[name].shape

    def packing(self, name: str) -> Packing:
        return FORMS[name]

    def read(
        self, name: str, region: Region | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        self.reads.append((name, region or ()))
        return deliver(NUMBERS[name][region or ...], out)

    def read_packed(self, name: str, region: Region | None = None) -> PackedBlocks:
        rows, columns = region or whole(self.shape(name))
        self.reads.append((name, (rows, columns)))
        block = FORMS[name].block or 32
        assert columns.start % block == columns.stop % block == 0
        blocks = slice(columns.start // block, columns.stop // block)
        found = PACKED[name]
        offsets = None if found.offsets is None else found.offsets[rows, blocks]
        return PackedBlocks(found.values[rows, columns], found.scales[rows, blocks], offsets)


def declared(source: WeightSource, rows: int, quantization: Any) -> Declaration:
    class Module(nnx.Module):
        def __init__(self) -> None:
            self.kernel = weight(
                (rows, 32),
                ("heads", "embed"),
                source,
                dtype=jnp.float32,
                quantization=quantization,
            )

    return blueprint(Module).declarations[0]


def assembled(weight: Declaration, checkpoint: Any, rows: slice, columns: slice) -> np.ndarray:
    """The weight's region from its parts, each asked for on its own."""
    assert weight.packing is not None
    reader = PackedReader(weight, weight.packing, checkpoint)
    block = weight.packing.block or 32
    blocks = slice(columns.start // block, -(-columns.stop // block))
    parts = {leaf.part: leaf for leaf in weight.leaves}
    arrays = {
        part: reader.read(leaf, (rows, columns if part == "values" else blocks))
        for part, leaf in parts.items()
    }
    return PackedBlocks(arrays["values"], arrays["scales"], arrays.get("offsets")).dequantized()


REGIONS = [(slice(0, 12), slice(0, 32)), (slice(3, 10), slice(0, 32)), (slice(5, 9), slice(16, 32))]


@pytest.mark.parametrize(("rows", "columns"), REGIONS)
def test_stored_parts_are_kept_exactly(rows: slice, columns: slice) -> None:
    source = Joined((Tensor("q"), Tensor("v")))
    found = declared(source, 12, AsStored(FORMS.__getitem__))
    assert found.packing == Packing("int8", 8, True)
    wanted = np.concatenate([PACKED[name].dequantized() for name in "qv"])[rows, columns]
    np.testing.assert_array_equal(assembled(found, Packed(), rows, columns), wanted)


def test_blocks_of_zeros_are_read_behind_the_scales() -> None:
    found = declared(Tensor("q"), 8, AsStored(FORMS.__getitem__))
    assert found.packing is not None
    reader = PackedReader(found, found.packing, Packed())  # type: ignore[arg-type]
    for leaf, wanted in zip(
        found.leaves[1:], (PACKED["q"].scales, PACKED["q"].offsets), strict=True
    ):
        read = reader.read(replace(leaf, shape=(8, 16)), (slice(0, 8), slice(0, 16)))
        np.testing.assert_array_equal(read[:, :2], wanted)
        assert read.shape == (8, 16)
        assert not read[:, 2:].any()


def test_rows_of_groups_are_kept_too() -> None:
    source = GroupRows(Tensor("q"), size=4, start=1, stop=3, groups=2)
    found = declared(source, 4, AsStored(FORMS.__getitem__))
    wanted = PACKED["q"].dequantized()[[1, 2, 5, 6]]
    got = assembled(found, Packed(), slice(0, 4), slice(0, 32))
    np.testing.assert_array_equal(got, wanted)


def test_every_part_of_a_region_comes_from_one_reading() -> None:
    checkpoint = Packed()
    found = declared(Tensor("q"), 8, AsStored(FORMS.__getitem__))
    assembled(found, checkpoint, slice(0, 8), slice(0, 32))
    assert len(checkpoint.reads) == 1


@pytest.mark.parametrize("scheme", [Scheme("int4", 8), Scheme("int8", 16)])
def test_quantising_on_the_way_gives_every_device_the_same_scales(scheme: Scheme) -> None:
    found = declared(Tensor("q"), 8, scheme)
    assert found.packing is not None
    wanted = quantize(NUMBERS["q"], found.packing).dequantized()
    for rows in (slice(0, 8), slice(2, 5)):
        for columns in (slice(0, 32), slice(16, 32)):
            got = assembled(found, Packed(), rows, columns)
            np.testing.assert_array_equal(got, wanted[rows, columns])


def test_a_part_of_a_row_is_quantised_with_the_scale_of_the_whole_row() -> None:
    found = declared(Tensor("q"), 8, Scheme("int8", None))
    assert found.packing is not None
    reader = PackedReader(found, found.packing, Packed())
    values, scales = found.leaves
    half = reader.read(values, (slice(0, 8), slice(16, 32)))
    whole_row = quantize(NUMBERS["q"], found.packing)
    np.testing.assert_array_equal(half, whole_row.values[:, 16:])
    np.testing.assert_array_equal(reader.read(scales, (slice(0, 8), slice(0, 1))), whole_row.scales)


def test_bytes_count_every_part() -> None:
    found = declared(Tensor("q"), 8, Scheme("int4", 8))
    assert found.bytes == 8 * 32 // 2 + 2 * 4 * 8 * 4


@pytest.mark.parametrize("rows", [(32, 16, 40), (24, 8, 56)])
def test_arrays_of_this_process_lie_in_tiles_as_the_joined_rows_do(rows: tuple[int, ...]) -> None:
    """Whether another array begins with a tile or within one, and in whatever order they lie."""
    found = [RNG.normal(size=(count, 48)).astype(ml_dtypes.bfloat16) for count in rows]
    given = {"a": found[0], "b": np.asfortranarray(found[1]), "c": found[2].astype(np.float32)}

    class Module(nnx.Module):
        def __init__(self) -> None:
            self.kernel = weight(
                (sum(rows), 48),
                ("heads", "embed"),
                tuple(given),
                dtype=jnp.bfloat16,
                tiles=True,
            )

    declared = blueprint(Module).declarations
    assert declared[0].is_tiled
    (tiles,) = read_weights(declared, NamedTensors(GivenArrays(given)), lambda _: None)
    np.testing.assert_array_equal(np.asarray(tiles), plain_tiles(np.concatenate(found)))


def test_a_file_of_its_own_lies_in_tiles_as_its_rows_do(tmp_path: Path) -> None:
    """In several bands, the borders of which are not those of its tensors."""
    found = [RNG.normal(size=(count, 2048)).astype(ml_dtypes.bfloat16) for count in (1500, 700)]
    save_file(dict(zip("ab", found, strict=True)), tmp_path / "x.safetensors")

    class Module(nnx.Module):
        def __init__(self) -> None:
            shape, axes = (2200, 2048), ("heads", "embed")
            self.kernel = weight(shape, axes, ("a", "b"), dtype=jnp.bfloat16, tiles=True)

    declared = blueprint(Module).declarations
    with closing(NamedTensors(SingleTensorFile(tmp_path / "x.safetensors"))) as file:
        (tiles,) = read_weights(declared, file, lambda _: None)
    np.testing.assert_array_equal(np.asarray(tiles), plain_tiles(np.concatenate(found)))


def test_arrays_cut_from_blocks_are_aligned_and_share_no_memory() -> None:
    memory = WeightMemory()
    shapes = ((3, 5), (1024, 1024), (7,), (12, 2**20), (33, 2**20), (40, 2**20), (2, 0), (9,))
    made = [memory.empty(shape, np.uint8) for shape in shapes]
    for number, (array, shape) in enumerate(zip(made, shapes, strict=True)):
        assert array.shape == shape
        assert array.ctypes.data % 64 == 0
        array.fill(number)
    assert [np.unique(array).tolist() for array in made] == [
        [number] if array.size else [] for number, array in enumerate(made)
    ]
    assert memory.empty((4,), np.float32).dtype == np.float32
    first, second = made[0].base, made[1].base
    assert first is second, "small arrays lie in one block"


def test_blocks_are_used_again_once_nothing_lies_in_them() -> None:
    blocks, large = SpareBlocks(), (40, 2**20)
    first = WeightMemory(blocks.block)
    made = [first.empty(shape, np.uint8) for shape in ((5,), (7, 3), large)]
    places = {array.ctypes.data & -(2**20) for array in made}
    assert all(blocks.holds(array.ctypes.data) for array in made)
    assert not blocks.holds(np.zeros(8).ctypes.data)
    kept = made[1][2:]  # a part of one array holds the block of both small ones
    kept.fill(9)
    del first, made
    second = WeightMemory(blocks.block)
    again = [second.empty(shape, np.uint8) for shape in (large, (5,), large)]
    for array in again:
        array.fill(1)
    reused = [array.ctypes.data & -(2**20) in places for array in again]
    assert reused == [True, False, False]
    assert kept.tolist() == [[9] * 3] * 5
    assert blocks.drop() == []
    del kept
    assert blocks.drop(64 * 2**20) == []
    (spare,) = blocks.drop(64 * 2**20 - 1)
    assert spare.nbytes == 64 * 2**20
    assert not blocks.holds(spare.ctypes.data)
    assert blocks.drop() == []
    few = WeightMemory(blocks.block, most=3 * 2**20)
    few.empty((1,), np.uint8)
    del few
    (spare,) = blocks.drop()
    assert spare.nbytes == 4 * 2**20


def test_a_band_overwrites_the_last_one_of_its_thread_and_no_other_threads() -> None:
    memory = BandMemory()
    first = memory.empty((4, 8), np.float32)
    first.fill(1)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: memory.empty((4, 8), np.float32).fill(2)).result()
    assert np.unique(first).tolist() == [1]
    assert np.shares_memory(memory.empty((2, 8), np.uint16), first)
    assert memory.empty((64, 64), np.float64).shape == (64, 64)
