"""Reads quantised weights of Hugging Face folders, each made of several stored tensors.

Supports these values of quant_method in config.json's quantization_config: fp8 and fbgemm_fp8
(`scaled_weight`), compressed-tensors (`compressed_tensors`), gptq and awq (`column_weight`), mxfp4
(`mxfp4`) and modelopt (`modelopt`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from model_server.checkpoints.huggingface.prequantized.column_weight import (
    awq_weights,
    gptq_weights,
)
from model_server.checkpoints.huggingface.prequantized.compressed_tensors import compressed_weights
from model_server.checkpoints.huggingface.prequantized.float4_weight import float4_weight
from model_server.checkpoints.huggingface.prequantized.mxfp4 import mxfp4_weights
from model_server.checkpoints.huggingface.prequantized.packed_weight import PackedWeight
from model_server.checkpoints.huggingface.prequantized.scaled_weight import scaled_weights
from model_server.checkpoints.huggingface.safetensors_tensors import StoredTensors
from sax.errors import CheckpointError

# Finds the weights of a checkpoint that was written by NVIDIA's Model Optimizer.
#
# Its configuration is hf_quant_config.json, or in later files quantization_config. NVFP4: NAME
# U8[out, in / 2] with NAME_scale F8_E4M3[out, in / 16] and NAME_scale_2. FP8: F8_E4M3 with
# NAME_scale of the tensor, of each output or of square blocks.

_ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "MIXED_PRECISION")
_INPUT_FACTORS = ".pre_quant_scale"


def modelopt_weights(
    config: Mapping[str, Any], dtypes: Mapping[str, str], stored: StoredTensors
) -> dict[str, PackedWeight]:
    """Return all quantised weights. Raises CheckpointError."""
    inner = config.get("quantization")
    settings = inner if isinstance(inner, Mapping) else config
    algorithm = str(settings.get("quant_algo")).upper()
    if algorithm not in _ALGORITHMS:
        raise CheckpointError(
            f"modelopt's quant_algo is {algorithm!r}; supported: {', '.join(_ALGORITHMS)}"
        )
    if factors := next((name for name in dtypes if name.endswith(_INPUT_FACTORS)), None):
        raise CheckpointError(
            f"tensor {factors}: inputs would have to be multiplied before products, which is not "
            "built; use a checkpoint of another quant_algo than AWQ's"
        )
    found = scaled_weights(None, dtypes, stored)
    for name, dtype in dtypes.items():
        if dtype == "U8" and name.endswith(".weight"):
            found[name] = float4_weight(name, f"{name}_scale", f"{name}_scale_2", dtypes, stored)
    return found


logger = logging.getLogger(__name__)

_Find = Callable[[Mapping[str, Any], Mapping[str, str], StoredTensors], dict[str, PackedWeight]]
# Stored tensors that make up a weight, by the end of their names.
_SIDE = (
    "weight_scale_inv",
    "weight_scale",
    "weight_scale_2",
    "weight_global_scale",
    "weight_packed",
    "weight_shape",
    "weight_zero_point",
    "weight_g_idx",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
)
# Ranges of activations and of cached keys and values: products are computed in DTYPE, and the cache
# has a format of its own (KV_CACHE_DTYPE).
_UNUSED = (
    ".input_scale",
    ".input_scale_ub",
    ".input_global_scale",
    ".input_zero_point",
    ".output_scale",
    ".output_zero_point",
    ".q_scale",
    ".k_scale",
    ".v_scale",
    ".prob_output_scale",
)


def packed_weights(
    config: Mapping[str, Any] | None, dtypes: Mapping[str, str], stored: StoredTensors
) -> tuple[dict[str, PackedWeight], set[str]]:
    """Return quantised weights by Hugging Face name, and the names of stored tensors to hide.

    config: quantization_config of config.json; dtypes: safetensors dtype of every stored tensor.
    Raises CheckpointError for an unsupported method.
    """
    if not config:
        return {}, set()
    method = _method(config)
    find = METHODS.get(method)
    if find is None:
        raise CheckpointError(
            f"quantization_config has quant_method {method!r}; supported: {', '.join(METHODS)}. "
            "Use the unquantised checkpoint and override QUANTIZE instead"
        )
    found = find(config, dtypes, stored)
    used = {part for name in found for part in _parts_of(name, dtypes)}
    used |= {part for weight in found.values() for part in weight.parts}
    unused = {name for name in dtypes if name.endswith(_UNUSED)}
    _tell(found, unused)
    return found, used | unused


def _method(config: Mapping[str, Any]) -> str:
    """Return quant_method; hf_quant_config.json names its producer instead."""
    producer = config.get("producer")
    named = producer.get("name") if isinstance(producer, Mapping) else None
    return str(config.get("quant_method", named))


def _parts_of(name: str, dtypes: Mapping[str, str]) -> Iterable[str]:
    prefix = name.removesuffix(".weight")
    return (f"{prefix}.{part}" for part in ("weight", *_SIDE) if f"{prefix}.{part}" in dtypes)


def _tell(found: Mapping[str, PackedWeight], unused: set[str]) -> None:
    """Log what is not computed as the checkpoint says, and what cannot be held as it is stored."""
    if unused:
        logger.info(
            "%d scales of activations, such as %s, are not used: weights are widened and products "
            "are computed in DTYPE",
            len(unused),
            min(unused),
        )
    loose = [name for name, weight in found.items() if weight.packing is None]
    if loose:
        logger.info(
            "%d weights, such as %s, share scales among columns that are no blocks of a row: they "
            "are held in DTYPE, or quantised anew by QUANTIZE",
            len(loose),
            loose[0],
        )


METHODS: dict[str, _Find] = {
    "fp8": lambda config, dtypes, stored: scaled_weights(_block_size(config), dtypes, stored),
    "fbgemm_fp8": lambda config, dtypes, stored: scaled_weights(None, dtypes, stored),
    "compressed-tensors": compressed_weights,
    "gptq": gptq_weights,
    "awq": awq_weights,
    "mxfp4": mxfp4_weights,
    "modelopt": modelopt_weights,
}


def _block_size(config: Mapping[str, Any]) -> tuple[int, int] | None:
    given = config.get("weight_block_size")
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != 2 or any(type(n) is not int for n in given):
        raise CheckpointError(
            f"quantization_config has weight_block_size = {given!r}; it must be the rows and "
            "columns of a block"
        )
    if min(given) < 1:
        raise CheckpointError(
            f"quantization_config has weight_block_size = {given}, without blocks"
        )
    return given[0], given[1]
