"""The method that config.json names finds the weights, and hides what they are made of."""

from __future__ import annotations

import logging
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from model_server.checkpoints.huggingface.prequantized.methods import packed_weights
from model_server.checkpoints.packed import Packing
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.checkpoints.huggingface.prequantized.stored_arrays import Arrays, whole_read

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
FLOAT4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


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
    return stored, np.asarray(FLOAT4)[codes & 7] * signs * wide


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
