"""Every format of compressed-tensors gives the numbers that the library gives."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from model_server.checkpoints.huggingface.prequantized.compressed_tensors import compressed_weights
from model_server.checkpoints.huggingface.safetensors_tensors import StoredTensors
from model_server.checkpoints.packed import FLOAT4, Packing
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.checkpoints.huggingface.prequantized.stored_arrays import (
    Arrays,
    whole_read,
    words_along_rows,
)

GOLDEN = Path(__file__).parents[4] / "golden" / "quantised"
PACKINGS = {
    "w4_groups": Packing("int4", 32, False),
    "w4_groups_zeros": Packing("int4", 32, True),
    "w8_groups": Packing("int8", 32, False),
    "w3_groups_zeros": Packing("int4", 32, True),
    "w6_rows": Packing("int8", None, False),
    "int8_rows": Packing("int8", None, False),
    "int8_rows_zeros": Packing("int8", None, True),
    "float8_tensor": Packing("float8_e4m3fn", None, False),
    "float8_rows": Packing("float8_e4m3fn", None, False),
    "float8_blocks": Packing("float8_e4m3fn", 32, False),
    "nvfp4": Packing("int8", 16, False),
    "mxfp4": Packing(FLOAT4, 32, False),
    "mxfp8": Packing("float8_e4m3fn", 32, False),
}


def golden(case: str) -> tuple[dict[str, Any], Any, np.ndarray]:
    """Its configuration, stored tensors and numbers."""
    with safe_open(GOLDEN / f"{case}.safetensors", "numpy") as opened:
        config = json.loads(opened.metadata()["quantization_config"])
    with closing(StoredTensors(GOLDEN, one_file=f"{case}.safetensors")) as opened:
        arrays = {name: opened.read(name) for name in opened.dtypes}
    wanted = arrays.pop("wanted")
    stored = Arrays()
    stored.arrays = arrays
    return config, stored, wanted


def read(config: dict[str, Any], stored: Any) -> Any:
    return compressed_weights(config, stored.dtypes, stored)["m.weight"]


def test_every_golden_file_is_looked_at() -> None:
    assert {place.stem for place in GOLDEN.iterdir()} == set(PACKINGS)


@each_case("case", PACKINGS)
def test_the_numbers_are_the_librarys(case: str) -> None:
    config, stored, wanted = golden(case)
    weight = read(config, stored)
    assert weight.shape == wanted.shape
    assert weight.packing == PACKINGS[case]
    found = whole_read(weight, stored)
    if case == "nvfp4":  # which the library rounds to bfloat16
        assert not np.array_equal(found, wanted)
        found = found.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_allclose(found, wanted, rtol=3e-7, atol=3e-7 * np.abs(wanted).max())


@each_case("case", PACKINGS)
def test_a_region_is_a_part_of_the_whole(case: str) -> None:
    config, stored, _ = golden(case)
    weight = read(config, stored)
    step = weight.step
    rows, columns = slice(7, 21), slice(weight.shape[1] // step // 2 * step, weight.shape[1])
    found = weight.read(stored, rows, columns).dequantized()
    np.testing.assert_array_equal(found, whole_read(weight, stored)[rows, columns])


@each_case("case", PACKINGS)
def test_a_missing_part_is_named(case: str) -> None:
    config, stored, _ = golden(case)
    parts = {"m.weight", "m.weight_packed"}
    for name in set(stored.arrays) - parts:
        _, left, _ = golden(case)
        del left.arrays[name]
        if case == "w4_groups_zeros" and name.endswith("zero_point"):
            config["config_groups"]["group_0"]["weights"]["symmetric"] = False
        with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
            read(config, left)


@each_case("case", PACKINGS)
def test_scales_of_another_shape_are_refused_with_both_shapes(case: str) -> None:
    config, stored, _ = golden(case)
    scales = stored.arrays["m.weight_scale"]
    stored.arrays["m.weight_scale"] = np.concatenate([scales, scales, scales])
    with pytest.raises(CheckpointError, match=r"m\.weight.*\[\d+.*\].*\[\d+.*\]"):
        read(config, stored)


def test_sorted_columns_take_the_scales_that_g_idx_names() -> None:
    """Later versions of the library no longer write it."""
    config, stored, _ = golden("w4_groups_zeros")
    plain = read(config, stored)
    order = np.random.default_rng(0).permutation(np.arange(64) // 32).astype(np.int32)
    stored.arrays["m.weight_g_idx"] = order
    weight = read(config, stored)
    assert weight.packing is None
    whole = plain.read(stored, slice(0, 40), slice(0, 64))
    assert whole.offsets is not None
    wanted = whole.values * whole.scales[:, order] + whole.offsets[:, order]
    np.testing.assert_array_equal(whole_read(weight, stored), wanted)
    part = weight.read(stored, slice(3, 9), slice(5, 30)).dequantized()
    np.testing.assert_array_equal(part, wanted[3:9, 5:30])


@each_case("value", [2, -2])
def test_groups_that_do_not_exist_are_refused_by_name(value: int) -> None:
    config, stored, _ = golden("w4_groups")
    stored.arrays["m.weight_g_idx"] = np.full(64, value, np.int32)
    with pytest.raises(CheckpointError, match=r"m\.weight_g_idx names the groups"):
        read(config, stored)


def test_ragged_groups_are_read_though_not_held_in_blocks() -> None:
    numbers = np.random.default_rng(0).integers(0, 16, (8, 40))
    scales = np.arange(1, 17, dtype=np.float32).reshape(8, 2)
    stored = Arrays(
        m__weight_packed=words_along_rows(numbers, 4),
        m__weight_scale=scales,
        m__weight_shape=np.array([8, 40], np.int64),
    )
    arguments = {"num_bits": 4, "type": "int", "symmetric": True, "group_size": 32}
    config = {"config_groups": {"a": {"targets": ["Linear"], "weights": arguments}}}
    weight = read(config, stored)
    assert weight.packing is None
    wide = np.repeat(scales, 32, axis=1)[:, :40]
    np.testing.assert_array_equal(whole_read(weight, stored), (numbers - 8.0) * wide)


def test_each_module_has_the_bits_of_its_group_and_ignored_ones_are_plain() -> None:
    """A name wins over an expression, and both over a class."""
    rng = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {}
    numbers = {"layers.0.up": 8, "layers.0.down": 4, "layers.1.up": 3}
    for module, bits in numbers.items():
        given = rng.integers(0, 1 << bits, (4, 32))
        tensors |= {
            f"{module}.weight_packed": words_along_rows(given, bits),
            f"{module}.weight_scale": np.ones((4, 1), np.float32),
            f"{module}.weight_shape": np.array([4, 32], np.int64),
        }
    tensors["lm_head.weight"] = np.ones((4, 32), np.float32)
    stored: Any = Arrays()
    stored.arrays = tensors

    def group(target: str, bits: int) -> dict[str, Any]:
        return {"targets": [target], "weights": {"num_bits": bits, "strategy": "channel"}}

    groups = {"a": group("Linear", 4), "b": group("re:.*up$", 8), "c": group("layers.1.up", 3)}
    config: dict[str, Any] = {"config_groups": groups, "ignore": ["lm_head"]}
    found: Any = compressed_weights(config, stored.dtypes, stored)
    assert {n.removesuffix(".weight"): w.bits for n, w in found.items()} == numbers
    groups["c"]["weights"]["num_bits"] = 5
    with pytest.raises(CheckpointError, match=r"layers\.1\.up\.weight_packed.*5 bits"):
        compressed_weights(config, stored.dtypes, stored)


@each_case(
    "changes, words",
    [
        ({"format": "marlin-24"}, "marlin-24.*supported: dense"),
        ({"format": "sparse-24-bitmask"}, "sparse-24-bitmask"),
        ({"config_groups": {"a": {"targets": [], "format": "mxfp6-pack-quantized"}}}, "mxfp6"),
        ({"sparsity_config": {"format": "sparse-bitmask"}}, "sparsity_config.*quantised only"),
        ({"transform_config": {"config_groups": {"u": {}}}}, "transform_config.*without"),
        ({"config_groups": [1]}, "config_groups"),
        ({"config_groups": {"a": {"targets": ["re:("], "weights": {}}}}, r"a\.targets"),
        ({"config_groups": {"a": {"targets": [3]}}}, r"a\.targets = '3'"),
        ({"config_groups": {"a": {"targets": [], "weights": {"num_bits": "4"}}}}, "num_bits"),
        ({"config_groups": {"a": {"weights": {"block_structure": [0, 1]}}}}, "block_structure"),
    ],
)
def test_what_is_not_read_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    config, stored, _ = golden("w4_groups")
    with pytest.raises(CheckpointError, match=words):
        read(config | changes, stored)


@each_case(
    "case, name, change, words",
    [
        ("w4_groups", "m.weight_packed", lambda a: a[:, :-1], r"packed is \[40, 7\] for 64"),
        ("w4_groups", "m.weight_packed", lambda a: a.astype(np.float32), "is F32"),
        ("w4_groups", "m.weight_shape", lambda a: a + 1, r"shape says \[41, 65\]"),
        ("w4_groups_zeros", "m.weight_zero_point", lambda a: a[:2], r"zero_point is \[2, 2\]"),
        ("nvfp4", "m.weight_packed", lambda a: a[:, :-2], "60 numbers a row.*blocks of 16"),
        ("nvfp4", "m.weight_scale", lambda a: a.astype(np.float32), "weight_scale is F32"),
        ("nvfp4", "m.weight_global_scale", lambda a: np.ones(2, np.float32), r"is \[2\]"),
        ("mxfp4", "m.weight_scale", lambda a: a.astype(np.float32), "weight_scale is F32"),
        ("int8_rows_zeros", "m.weight_zero_point", lambda a: a[:2], r"must be \[40, 1\]"),
    ],
)
def test_tensors_that_do_not_fit_are_named(case: str, name: str, change: Any, words: str) -> None:
    config, stored, _ = golden(case)
    stored.arrays[name] = change(stored.arrays[name])
    with pytest.raises(CheckpointError, match=words):
        read(config, stored)
