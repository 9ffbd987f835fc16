"""A tiny Llama quantised in every form, with the numbers that its weights stand for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save

from tests.model_server.checkpoints.huggingface.prequantized.stored_arrays import words_along_rows
from tests.model_server.checkpoints.tiny_folder import (
    CONFIG,
    random_weights,
    write_json,
    write_tiny,
)

SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
GROUP = 32
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
FLOAT4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
# The stored tensors of a weight [out, in], by the end of their names, and its numbers.
Packed = tuple[dict[str, np.ndarray], np.ndarray]
Pack = Callable[[int, int, np.random.Generator], Packed]


def _by_group(numbers: np.ndarray, size: int = GROUP) -> np.ndarray:
    return np.repeat(numbers, size, axis=1).astype(np.float32)


def _parts(bits: int, out: int, inputs: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Values, zeros and scales."""
    groups = (out, inputs // GROUP)
    scales = rng.uniform(0.3, 0.6, groups).astype(np.float16) / np.float16(1 << bits)
    return rng.integers(0, 1 << bits, (out, inputs)), rng.integers(1, 1 << bits, groups), scales


def _gptq(bits: int, sorted_columns: bool) -> Pack:
    def pack(out: int, inputs: int, rng: np.random.Generator) -> Packed:
        values, zeros, scales = _parts(bits, out, inputs, rng)
        order = np.arange(inputs) // GROUP
        order = rng.permutation(order) if sorted_columns else order
        stored = {
            "qweight": words_along_rows(values, bits).T,
            "qzeros": words_along_rows(zeros.T - 1, bits),
            "scales": scales.T,
            "g_idx": order.astype(np.int32),
        }
        return stored, (values - zeros[:, order]) * scales[:, order].astype(np.float32)

    return pack


def _awq(out: int, inputs: int, rng: np.random.Generator) -> Packed:
    values, zeros, scales = _parts(4, out, inputs, rng)
    stored = {
        "qweight": words_along_rows(values.T, 4, AWQ_ORDER),
        "qzeros": words_along_rows(zeros.T, 4, AWQ_ORDER),
        "scales": scales.T,
    }
    return stored, (values - _by_group(zeros)) * _by_group(scales)


def _words(out: int, inputs: int, rng: np.random.Generator) -> Packed:
    values, zeros, scales = _parts(4, out, inputs, rng)
    stored = {
        "weight_packed": words_along_rows(values, 4),
        "weight_zero_point": words_along_rows(zeros.T, 4).T,
        "weight_scale": scales,
        "weight_shape": np.array([out, inputs], np.int64),
    }
    return stored, (values - _by_group(zeros)) * _by_group(scales)


def _int8(out: int, inputs: int, rng: np.random.Generator) -> Packed:
    values = rng.integers(-127, 128, (out, inputs)).astype(np.int8)
    scales = rng.uniform(0.001, 0.004, (out, 1)).astype(np.float32)
    return {"weight": values, "weight_scale": scales}, values * scales


def _float8(out: int, inputs: int, rng: np.random.Generator) -> Packed:
    values = rng.normal(size=(out, inputs)).astype(ml_dtypes.float8_e4m3fn)
    scales = rng.uniform(0.1, 0.3, (-(-out // 48), inputs // 32)).astype(np.float32)
    wide = _by_group(np.repeat(scales, 48, axis=0)[:out])
    return {"weight": values, "weight_scale_inv": scales}, values.astype(np.float32) * wide


def _float4(names: tuple[str, str, str], exponents: bool, divides: bool) -> Pack:
    """names: of the values, the blocks' scales and the tensor's."""

    def pack(out: int, inputs: int, rng: np.random.Generator) -> Packed:
        codes = rng.integers(0, 16, (out, inputs)).astype(np.uint8)
        size = 32 if exponents else 16
        whole = np.float32(0.0023)
        if exponents:
            scales = rng.integers(121, 125, (out, inputs // size)).astype(np.uint8)
            wide = _by_group(np.exp2(scales.astype(np.float32) - 127), size)
        else:
            scales = rng.uniform(8, 60, (out, inputs // size)).astype(ml_dtypes.float8_e4m3fn)
            wide = _by_group(scales.astype(np.float32) * whole, size)
        stored = {names[0]: codes[:, ::2] | codes[:, 1::2] << 4, names[1]: scales}
        if not exponents:
            stored[names[2]] = np.array([1 / whole if divides else whole], np.float32)
        return stored, FLOAT4[codes] * wide

    return pack


def _compressed(form: str, **weights: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}


_GPTQ = {"quant_method": "gptq", "group_size": GROUP, "checkpoint_format": "gptq"}
_PACKED = ("weight_packed", "weight_scale", "weight_global_scale")
FORMS: dict[str, tuple[dict[str, Any], Pack]] = {
    "gptq": (_GPTQ | {"bits": 4, "desc_act": False}, _gptq(4, False)),
    "gptq_sorted": (_GPTQ | {"bits": 4, "desc_act": True}, _gptq(4, True)),
    "gptq_3_bits": (_GPTQ | {"bits": 3, "desc_act": False}, _gptq(3, False)),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}, _awq),
    "w4a16": (_compressed("pack-quantized", num_bits=4, symmetric=False, group_size=32), _words),
    "w8a8": (_compressed("int-quantized", num_bits=8, symmetric=True), _int8),
    "nvfp4": (_compressed("nvfp4-pack-quantized", num_bits=4), _float4(_PACKED, False, True)),
    "mxfp4": (_compressed("mxfp4-pack-quantized", num_bits=4), _float4(_PACKED, True, True)),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [48, 32]}, _float8),
    "modelopt": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        _float4(("weight", "weight_scale", "weight_scale_2"), False, False),
    ),
}


def write_quantised(form: str, place: Path) -> tuple[Path, Path]:
    """Write the folder of a form, and one of the same numbers in float32."""
    config, pack = FORMS[form]
    quantised = write_tiny(place / form, **SIZES)
    plain = write_tiny(place / "plain", **SIZES)
    write_json(
        quantised / "config.json",
        CONFIG | SIZES | {"quantization_config": config | {"ignore": ["lm_head"]}},
    )
    rng = np.random.default_rng(0)
    stored, numbers = {}, random_weights(CONFIG | SIZES)
    for name, given in list(numbers.items()):
        if not name.endswith("_proj.weight"):
            stored[name] = given
            continue
        parts, numbers[name] = pack(*given.shape, rng)
        prefix = name.removesuffix("weight")
        stored |= {prefix + end: np.ascontiguousarray(part) for end, part in parts.items()}
    (quantised / "model.safetensors").write_bytes(save(stored))
    (plain / "model.safetensors").write_bytes(
        save({name: np.ascontiguousarray(given, np.float32) for name, given in numbers.items()})
    )
    return quantised, plain
