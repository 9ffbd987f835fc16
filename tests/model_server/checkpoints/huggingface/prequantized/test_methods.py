"""The method that config.json names finds the weights, and hides what they are made of."""

from __future__ import annotations

import json
import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from model_server.checkpoints.huggingface.prequantized.methods import (
    compressed_weights,
    packed_weights,
)
from model_server.checkpoints.huggingface.safetensors_tensors import StoredTensors
from model_server.checkpoints.packed import FLOAT4, Packing
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.checkpoints.huggingface.prequantized.stored_arrays import (
    Arrays,
    whole_read,
    words_along_rows,
)

MODULE = "model_server.checkpoints.huggingface.prequantized.methods"


def found(config: dict[str, Any] | None, stored: Any) -> tuple[dict[str, Any], set[str]]:
    return packed_weights(config, stored.dtypes, stored)


def int8_rows() -> Any:
    return Arrays(
        w__weight=np.ones((4, 8), np.int8),
        w__weight_scale=np.ones((4, 1), np.float32),
        w__bias=np.ones(4, np.float32),
    )


def test_nothing_is_packed_without_a_quantization_config() -> None:
    assert found(None, int8_rows()) == ({}, set())


def test_the_parts_of_a_weight_are_hidden_and_other_tensors_are_not() -> None:
    weights, hidden = found({"quant_method": "compressed-tensors"}, int8_rows())
    assert set(weights) == {"w.weight"}
    assert hidden == {"w.weight", "w.weight_scale"}


@each_case("method", ["hqq", "bitsandbytes", "quark", None])
def test_an_unknown_method_is_refused_with_a_way_out(method: str | None) -> None:
    with pytest.raises(CheckpointError, match=f"'{method}'.*supported.*modelopt.*QUANTIZE"):
        found({"quant_method": method, "load_in_4bit": True}, int8_rows())


def test_scales_of_activations_are_left_out_with_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stored = int8_rows()
    names = ("w.input_scale", "w.input_zero_point", "attn.k_scale", "attn.v_scale")
    stored.arrays |= {name: np.ones(1, np.float32) for name in names}
    with caplog.at_level(logging.INFO, MODULE):
        _, hidden = found({"quant_method": "compressed-tensors"}, stored)
    assert hidden == {"w.weight", "w.weight_scale", *names}
    assert "4 scales of activations, such as attn.k_scale, are not used" in caplog.text


def test_what_is_not_held_as_stored_is_said_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    stored = Arrays(
        w__weight=np.ones((4, 10), np.int8), w__weight_scale=np.ones((1, 2), np.float32)
    )
    with caplog.at_level(logging.INFO, MODULE):
        weights, _ = found({"quant_method": "fp8", "weight_block_size": [4, 8]}, stored)
    assert weights["w.weight"].packing is None
    assert "1 weights, such as w.weight, share scales" in caplog.text
    assert "held in DTYPE" in caplog.text


@each_case("given", [128, [128], [0, 128], ["128", 128]])
def test_a_block_size_that_is_none_is_refused(given: Any) -> None:
    with pytest.raises(CheckpointError, match="weight_block_size"):
        found({"quant_method": "fp8", "weight_block_size": given}, int8_rows())


OUT, IN = 6, 32
FLOAT4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def nvfp4() -> tuple[Any, np.ndarray]:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (OUT, IN)).astype(np.uint8)
    scales = rng.uniform(1, 300, (OUT, IN // 16)).astype(ml_dtypes.float8_e4m3fn)
    stored = Arrays(
        w__weight=codes[:, ::2] | codes[:, 1::2] << 4,
        w__weight_scale=scales,
        w__weight_scale_2=np.float32(0.0037),
        w__input_scale=np.float32(0.1),
    )
    wide = np.repeat(scales.astype(np.float32) * np.float32(0.0037), 16, axis=1)
    signs = np.where(codes & 8, -1, 1)
    return stored, np.asarray(FLOAT4_VALUES)[codes & 7] * signs * wide


def settings(algorithm: str) -> dict[str, Any]:
    """As hf_quant_config.json has them."""
    return {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": algorithm}}


def test_nvfp4_has_scales_of_blocks_and_of_the_tensor() -> None:
    stored, wanted = nvfp4()
    found, hidden = packed_weights(settings("NVFP4"), stored.dtypes, stored)
    assert hidden == set(stored.arrays)
    weight: Any = found["w.weight"]
    assert (weight.shape, weight.packing) == ((OUT, IN), Packing("int8", 16, False))
    np.testing.assert_allclose(whole_read(weight, stored), wanted, rtol=1e-6)
    part = weight.read(stored, slice(2, 5), slice(16, 32)).dequantized()
    np.testing.assert_allclose(part, wanted[2:5, 16:], rtol=1e-6)


def test_fp8_has_a_scale_of_the_tensor() -> None:
    values = np.arange(-8, 8).reshape(2, 8).astype(ml_dtypes.float8_e4m3fn)
    stored: Any = Arrays(w__weight=values, w__weight_scale=np.float32(0.25))
    config = {"quant_method": "modelopt", "quant_algo": "FP8"}
    found, _ = packed_weights(config, stored.dtypes, stored)
    read = whole_read(found["w.weight"], stored)
    np.testing.assert_array_equal(read, values.astype(np.float32) / 4)


def test_other_algorithms_and_factors_of_inputs_are_refused_by_name() -> None:
    stored, _ = nvfp4()
    with pytest.raises(CheckpointError, match="quant_algo is 'W4A8_AWQ'; supported: FP8"):
        packed_weights(settings("W4A8_AWQ"), stored.dtypes, stored)
    stored.arrays["w.pre_quant_scale"] = np.ones(IN, np.float32)
    with pytest.raises(CheckpointError, match=r"w\.pre_quant_scale: inputs would"):
        packed_weights(settings("NVFP4"), stored.dtypes, stored)


def test_a_missing_scale_is_named() -> None:
    stored, _ = nvfp4()
    del stored.arrays["w.weight_scale_2"]
    with pytest.raises(CheckpointError, match=r"w\.weight_scale_2 is missing"):
        packed_weights(settings("NVFP4"), stored.dtypes, stored)


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
