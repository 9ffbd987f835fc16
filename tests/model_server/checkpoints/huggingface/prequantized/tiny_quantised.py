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


def _by_group(numbers: np.ndarray, size: int) -> np.ndarray:
    return np.repeat(numbers, size, axis=1).astype(np.float32)


def _parts(
    bits: int, size: int, out: int, inputs: int, rng: np.random.Generator
) -> tuple[np.ndarray, ...]:
    """Values, zeros and scales of groups of `size` columns."""
    groups = (out, inputs // size)
    scales = rng.uniform(0.3, 0.6, groups).astype(np.float16) / np.float16(1 << bits)
    return rng.integers(0, 1 << bits, (out, inputs)), rng.integers(1, 1 << bits, groups), scales


def _gptq(bits: int, size: int, sorted_columns: bool) -> Pack:
    def pack(out: int, inputs: int, rng: np.random.Generator) -> Packed:
        values, zeros, scales = _parts(bits, size, out, inputs, rng)
        order = np.arange(inputs) // size
        order = rng.permutation(order) if sorted_columns else order
        stored = {
            "qweight": words_along_rows(values, bits).T,
            "qzeros": words_along_rows(zeros.T - 1, bits),
            "scales": scales.T,
            "g_idx": order.astype(np.int32),
        }
        return stored, (values - zeros[:, order]) * scales[:, order].astype(np.float32)

    return pack


def _awq(size: int) -> Pack:
    def pack(out: int, inputs: int, rng: np.random.Generator) -> Packed:
        values, zeros, scales = _parts(4, size, out, inputs, rng)
        stored = {
            "qweight": words_along_rows(values.T, 4, AWQ_ORDER),
            "qzeros": words_along_rows(zeros.T, 4, AWQ_ORDER),
            "scales": scales.T,
        }
        return stored, (values - _by_group(zeros, size)) * _by_group(scales, size)

    return pack


def _words(size: int) -> Pack:
    def pack(out: int, inputs: int, rng: np.random.Generator) -> Packed:
        values, zeros, scales = _parts(4, size, out, inputs, rng)
        stored = {
            "weight_packed": words_along_rows(values, 4),
            "weight_zero_point": words_along_rows(zeros.T, 4).T,
            "weight_scale": scales,
            "weight_shape": np.array([out, inputs], np.int64),
        }
        return stored, (values - _by_group(zeros, size)) * _by_group(scales, size)

    return pack


def _int8(out: int, inputs: int, rng: np.random.Generator) -> Packed:
    values = rng.integers(-127, 128, (out, inputs)).astype(np.int8)
    scales = rng.uniform(0.001, 0.004, (out, 1)).astype(np.float32)
    return {"weight": values, "weight_scale": scales}, values * scales


def _float8(size: int) -> Pack:
    def pack(out: int, inputs: int, rng: np.random.Generator) -> Packed:
        values = rng.normal(size=(out, inputs)).astype(ml_dtypes.float8_e4m3fn)
        scales = rng.uniform(0.1, 0.3, (-(-out // 48), inputs // size)).astype(np.float32)
        wide = _by_group(np.repeat(scales, 48, axis=0)[:out], size)
        return {"weight": values, "weight_scale_inv": scales}, values.astype(np.float32) * wide

    return pack


def _float8_rows(out: int, inputs: int, rng: np.random.Generator) -> Packed:
    values = rng.normal(size=(out, inputs)).astype(ml_dtypes.float8_e4m3fn)
    scales = rng.uniform(0.1, 0.3, (out, 1)).astype(np.float32)
    return {"weight": values, "weight_scale": scales}, values.astype(np.float32) * scales


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


_PACKED = ("weight_packed", "weight_scale", "weight_global_scale")
Forms = dict[str, tuple[dict[str, Any], Pack]]


def forms_of(size: int) -> Forms:
    """Return each form's quantization_config and packer; size: columns of a group, where free."""
    gptq = {"quant_method": "gptq", "group_size": size, "checkpoint_format": "gptq"}
    words = {"num_bits": 4, "symmetric": False, "group_size": size}
    return {
        "gptq": (gptq | {"bits": 4, "desc_act": False}, _gptq(4, size, False)),
        "gptq_sorted": (gptq | {"bits": 4, "desc_act": True}, _gptq(4, size, True)),
        "gptq_3_bits": (gptq | {"bits": 3, "desc_act": False}, _gptq(3, size, False)),
        "awq": (
            {"quant_method": "awq", "bits": 4, "group_size": size, "version": "gemm"},
            _awq(size),
        ),
        "w4a16": (_compressed("pack-quantized", **words), _words(size)),
        "w8a8": (_compressed("int-quantized", num_bits=8, symmetric=True), _int8),
        "nvfp4": (_compressed("nvfp4-pack-quantized", num_bits=4), _float4(_PACKED, False, True)),
        "mxfp4": (_compressed("mxfp4-pack-quantized", num_bits=4), _float4(_PACKED, True, True)),
        "fp8": ({"quant_method": "fp8", "weight_block_size": [48, size]}, _float8(size)),
        "fp8_rows": (_compressed("float-quantized", num_bits=8, type="float"), _float8_rows),
        "modelopt": (
            {"quant_method": "modelopt", "quant_algo": "NVFP4"},
            _float4(("weight", "weight_scale", "weight_scale_2"), False, False),
        ),
    }


FORMS = forms_of(GROUP)


def write_quantised(form: str, place: Path) -> tuple[Path, Path]:
    """Write the folder of a form, and one of the same numbers in float32."""
    config, pack = FORMS[form]
    quantised = write_tiny(place / form, **SIZES)
    plain = write_tiny(place / "plain", **SIZES)
    write_json(
        quantised / "config.json",
        CONFIG | SIZES | {"quantization_config": config | {"ignore": ["lm_head"]}},
    )
    weights = random_weights(CONFIG | SIZES)
    write_both(quantised, plain, weights, pack, lambda name: name.endswith("_proj.weight"))
    return quantised, plain


def write_both(
    quantised: Path,
    plain: Path,
    weights: dict[str, np.ndarray],
    pack: Pack,
    packs: Callable[[str], bool],  # whether a weight is quantised, by its name
) -> None:
    """Write the weights quantised, and the numbers that they stand for."""
    rng = np.random.default_rng(0)
    stored, numbers = {}, dict(weights)
    for name, given in weights.items():
        if not packs(name):
            stored[name] = given
            continue
        parts, numbers[name] = pack(*given.shape, rng)
        prefix = name.removesuffix("weight")
        stored |= {prefix + end: np.ascontiguousarray(part) for end, part in parts.items()}
    (quantised / "model.safetensors").write_bytes(save(stored))
    (plain / "model.safetensors").write_bytes(
        save({name: np.ascontiguousarray(given, _plain(given)) for name, given in numbers.items()})
    )


def _plain(numbers: np.ndarray) -> Any:
    return numbers.dtype if numbers.dtype.kind == "i" else np.float32
