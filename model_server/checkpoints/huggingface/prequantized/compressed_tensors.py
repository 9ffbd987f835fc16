"""Finds the weights of a checkpoint that was written by compressed-tensors.

Stored tensors tell the format of each weight, so one checkpoint may mix formats: NAME_packed in
words of I32 is pack-quantized, in bytes nvfp4- or mxfp4-pack-quantized; I8 is int-quantized, and
F8_E4M3 float-quantized or mxfp8-quantized. Weights that the configuration ignores are plain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.checkpoints.huggingface.prequantized.float4_weight import float4_weight
from model_server.checkpoints.huggingface.prequantized.packed_weight import PackedWeight
from model_server.checkpoints.huggingface.prequantized.scaled_weight import scaled_weight
from model_server.checkpoints.huggingface.prequantized.scheme import WeightScheme, scheme_groups
from model_server.checkpoints.huggingface.prequantized.word_weight import word_weight
from model_server.checkpoints.huggingface.safetensors_tensors import StoredTensors
from sax.errors import CheckpointError

FORMATS = (
    "dense",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "pack-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "mixed-precision",
)
_PACKED = ".weight_packed"


def compressed_weights(
    config: Mapping[str, Any], dtypes: Mapping[str, str], stored: StoredTensors
) -> dict[str, PackedWeight]:
    """Return all quantised weights. Raises CheckpointError."""
    _check_format(config)
    schemes = scheme_groups(config)
    found: dict[str, PackedWeight] = {}
    for tensor, dtype in dtypes.items():
        module = tensor.removesuffix(".weight").removesuffix(_PACKED)
        name = f"{module}.weight"
        if tensor == name and dtype in ("I8", "F8_E4M3"):
            scheme = schemes.of(module)
            tile = scheme.tile if scheme else None
            if scheme and tile is None and scheme.group_size and scheme.group_size > 0:
                tile = (1, scheme.group_size)
            found[name] = scaled_weight(name, tile, scheme, dtypes, stored)
        elif tensor == module + _PACKED:
            found[name] = _packed_weight(module, schemes.of(module), dtypes, stored)
    return found


def _packed_weight(
    module: str, scheme: WeightScheme | None, dtypes: Mapping[str, str], stored: StoredTensors
) -> PackedWeight:
    name, packed = f"{module}.weight", module + _PACKED
    if dtypes[packed] == "I32":
        for part in (f"{name}_scale", f"{name}_shape"):
            if part not in dtypes:
                raise CheckpointError(
                    f"tensor {packed} has no {part} beside it: fetch the checkpoint again"
                )
        return word_weight(name, scheme, dtypes, stored)
    if dtypes[packed] != "U8":
        raise CheckpointError(
            f"tensor {packed} is {dtypes[packed]}; integers are packed into I32, float4 into U8"
        )
    whole = f"{name}_global_scale"
    nvfp4 = whole in dtypes or dtypes.get(f"{name}_scale") == "F8_E4M3"
    return float4_weight(
        packed, f"{name}_scale", whole if nvfp4 else None, dtypes, stored, divides=True
    )


def _check_format(config: Mapping[str, Any]) -> None:
    """Raise CheckpointError for formats whose numbers would be read wrongly."""
    groups = config.get("config_groups") or {}
    formats = {config.get("format")}
    if isinstance(groups, Mapping):
        formats |= {each.get("format") for each in groups.values() if isinstance(each, Mapping)}
    for given in sorted(str(each) for each in formats - {None}):
        if given not in FORMATS:
            raise CheckpointError(
                f"quantization_config has format {given!r}; supported: {', '.join(FORMATS)}"
            )
    sparsity = config.get("sparsity_config") or {}
    if sparsity.get("format", "dense") not in ("dense", None):
        raise CheckpointError(
            f"quantization_config has a sparsity_config of format {sparsity['format']!r}: sparse "
            "weights are not read; use a checkpoint that is quantised only"
        )
    transforms = config.get("transform_config") or {}
    if transforms.get("config_groups"):
        raise CheckpointError(
            "quantization_config has a transform_config: inputs would have to be rotated before "
            "products, which is not built; use a checkpoint without transforms"
        )
