"""Finds the weights of a checkpoint that was written by NVIDIA's Model Optimizer.

Its configuration is hf_quant_config.json, or in later files quantization_config. NVFP4: NAME
U8[out, in / 2] with NAME_scale F8_E4M3[out, in / 16] and NAME_scale_2. FP8: F8_E4M3 with NAME_scale
of the tensor, of each output or of square blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.checkpoints.huggingface.prequantized.float4_weight import float4_weight
from model_server.checkpoints.huggingface.prequantized.packed_weight import PackedWeight
from model_server.checkpoints.huggingface.prequantized.scaled_weight import scaled_weights
from model_server.checkpoints.huggingface.safetensors_tensors import StoredTensors
from sax.errors import CheckpointError

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
