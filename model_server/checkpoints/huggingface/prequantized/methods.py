"""Reads quantised weights of Hugging Face folders, each made of several stored tensors.

Supports these values of quant_method in config.json's quantization_config: fp8 and fbgemm_fp8
(`scaled_weight`), compressed-tensors (`compressed_tensors`), gptq and awq (`column_weight`), mxfp4
(`mxfp4`) and modelopt (`modelopt`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from model_server.checkpoints.huggingface.prequantized.column_weight import (
    ColumnGroups,
    awq_weights,
    column_groups,
    gptq_weights,
    scattered,
)
from model_server.checkpoints.huggingface.prequantized.packed_weight import (
    PackedWeight,
    check_shape,
    matrix_shape,
)
from model_server.checkpoints.huggingface.prequantized.scaled_weight import (
    float4_weight,
    float8_weights,
    mxfp4_weights,
    scaled_weight,
    scaled_weights,
)
from model_server.checkpoints.huggingface.prequantized.scheme import WeightScheme, scheme_groups
from model_server.checkpoints.huggingface.prequantized.words import (
    unpack_span,
    unpack_span_down,
    words_of,
)
from model_server.checkpoints.huggingface.safetensors_tensors import StoredTensors
from model_server.checkpoints.packed import PackedBlocks, Packing
from sax.errors import CheckpointError

logger = logging.getLogger(__name__)

# Finds the weights of a checkpoint that was written by compressed-tensors.
#
# Stored tensors tell the format of each weight, so one checkpoint may mix formats: NAME_packed in
# words of I32 is pack-quantized, in bytes nvfp4- or mxfp4-pack-quantized; I8 is int-quantized, and
# F8_E4M3 float-quantized or mxfp8-quantized. Weights that the configuration ignores are plain.
#
# Weights of compressed-tensors whose integers are packed into words: `pack-quantized`.
#
# weight_packed i32[out, in * bits / 32] along each row, plus half the range; weight_scale [out,
# groups]; weight_zero_point i32[out * bits / 32, groups] along each column if zeros differ;
# weight_shape, [out, in]; weight_g_idx if the columns were sorted.


@dataclass(frozen=True, slots=True)
class WordWeight(PackedWeight):
    words: str
    scales: str
    zeros: str | None
    bits: int
    shape: tuple[int, int]
    groups: ColumnGroups

    @property
    def packing(self) -> Packing | None:
        kind = "int4" if self.bits <= 4 else "int8"
        return self.groups.packing(kind, self.zeros is not None)

    def read(self, stored: StoredTensors, *region: slice) -> PackedBlocks:
        rows, columns = region
        unsigned = unpack_span(stored, self.words, self.bits, rows, columns)
        values = (unsigned - np.uint8(self._half)).view(np.int8)
        wanted = self.groups.of(columns)
        scales = stored.read(self.scales, (rows,)).astype(np.float32)
        scales = scales.reshape(len(values), -1)[:, wanted]
        if self.zeros is None:
            return PackedBlocks(values, scales, None)
        # By column: u8[groups, rows].
        zeros = unpack_span_down(
            stored, self.zeros, self.bits, rows, slice(0, self.groups.count)
        ).T[:, wanted]
        return PackedBlocks(values, scales, (self._half - zeros.astype(np.float32)) * scales)

    @property
    def _half(self) -> int:
        return 1 << (self.bits - 1)


def word_weight(
    name: str, scheme: WeightScheme | None, dtypes: Mapping[str, str], stored: StoredTensors
) -> WordWeight:
    """Return the weight of NAME_packed. Raises CheckpointError if its parts do not fit."""
    packed, scales = f"{name}_packed", f"{name}_scale"
    out, words = matrix_shape(stored, packed)
    inputs = _inputs(name, out, stored)
    bits = scheme.bits if scheme and scheme.bits else 32 * words // inputs
    if not 2 <= bits <= 8 or words_of(inputs, bits) != words:
        raise CheckpointError(
            f"tensor {packed} is {[out, words]} for {inputs} columns of {bits} bits; numbers of 2 "
            "to 8 bits are packed without gaps: save it with a later compressed-tensors, or use "
            "another quantisation of the model"
        )
    count = (stored.shape(scales)[1:] or (1,))[0]
    check_shape(stored, scales, (out, *stored.shape(scales)[1:]), "with a row for each output")
    groups = column_groups(inputs, count, scheme.group_size if scheme else None, scales)
    if f"{name}_g_idx" in dtypes:
        groups = scattered(groups, stored.read(f"{name}_g_idx"), f"{name}_g_idx")
    zeros = f"{name}_zero_point"
    if zeros not in dtypes:
        if scheme and not scheme.symmetric:
            raise CheckpointError(
                f"tensor {packed} has zero points by config.json, and {zeros} is missing: fetch "
                "the checkpoint again"
            )
        return WordWeight(packed, scales, None, bits, (out, inputs), groups)
    check_shape(stored, zeros, (words_of(out, bits), groups.count), f"for {bits} bits of {packed}")
    return WordWeight(packed, scales, zeros, bits, (out, inputs), groups)


def _inputs(name: str, out: int, stored: StoredTensors) -> int:
    shape = stored.read(f"{name}_shape").astype(np.int64).tolist()
    if len(shape) != 2 or shape[0] != out or shape[1] < 1:
        raise CheckpointError(
            f"tensor {name}_shape says {shape}, and {name}_packed has {out} rows: fetch the "
            "checkpoint again"
        )
    return shape[1]


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


_Find = Callable[[Mapping[str, Any], Mapping[str, str], StoredTensors], dict[str, PackedWeight]]
# Stored tensors that make up a weight, by the end of their names.
_SIDE = (
    "weight_scale_inv",
    "weight_scale",
    "weight_scale_2",
    "scale",
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
    "fp8": lambda config, dtypes, stored: float8_weights(_block_size(config), dtypes, stored),
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
