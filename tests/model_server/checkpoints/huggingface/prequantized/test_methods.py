"""The method that config.json names finds the weights, and hides what they are made of."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from model_server.checkpoints.huggingface.prequantized.methods import packed_weights
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.checkpoints.huggingface.prequantized.stored_arrays import Arrays

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
