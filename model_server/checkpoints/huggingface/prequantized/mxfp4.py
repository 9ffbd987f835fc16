"""MXFP4 weights of Hugging Face folders, as gpt-oss has them for the experts of a layer.

NAME_blocks u8[E, out, in / 32, 16] holds two values to a byte, the low half first, and NAME_scales
u8[E, out, in / 32] the exponent of each block plus 127.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from model_server.checkpoints.huggingface.prequantized.packed_weight import PackedWeight
from model_server.checkpoints.huggingface.safetensors_tensors import StoredTensors
from model_server.checkpoints.packed import FLOAT4, PackedBlocks, Packing, e8m0_numbers
from sax.errors import CheckpointError

_BLOCKS, _SCALES = "_blocks", "_scales"
_BLOCK = 32
PACKING = Packing(FLOAT4, _BLOCK, False)


@dataclass(frozen=True, slots=True)
class Mxfp4Weight(PackedWeight):
    name: str
    shape: tuple[int, ...]  # [E, out, in]

    @property
    def packing(self) -> Packing:
        return PACKING

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.name + _BLOCKS, self.name + _SCALES)

    def read(self, stored: StoredTensors, *region: slice) -> PackedBlocks:
        *rows, columns = region
        blocks = slice(columns.start // _BLOCK, columns.stop // _BLOCK)
        values, scales = (stored.read(part, (*rows, blocks)) for part in self.parts)
        return PackedBlocks(int4_codes(values), e8m0_numbers(scales), None, float4=True)


def int4_codes(packed: np.ndarray) -> np.ndarray:
    """The bits of each value as i8[..., 32 B], -8..7, from u8[..., B, 16]."""
    codes = np.empty((*packed.shape[:-1], packed.shape[-1], 2), np.int8)
    codes[..., 0] = (packed << 4).view(np.int8) >> 4
    codes[..., 1] = packed.view(np.int8) >> 4
    return codes.reshape(*packed.shape[:-2], -1)


def mxfp4_weights(
    config: Mapping[str, Any], dtypes: Mapping[str, str], stored: StoredTensors
) -> dict[str, PackedWeight]:
    """Return the weights that have blocks and scales. Raises CheckpointError if they do not fit."""
    names = [name.removesuffix(_BLOCKS) for name in dtypes if name.endswith(_BLOCKS)]
    return {name: _weight(name, dtypes, stored) for name in names}


def _weight(name: str, dtypes: Mapping[str, str], stored: StoredTensors) -> Mxfp4Weight:
    blocks, scales = name + _BLOCKS, name + _SCALES
    if scales not in dtypes:
        raise CheckpointError(f"tensor {blocks} has no {scales} beside it")
    if (dtypes[blocks], dtypes[scales]) != ("U8", "U8"):
        raise CheckpointError(
            f"tensor {blocks} is {dtypes[blocks]} and its scales are {dtypes[scales]}; "
            "MXFP4 stores both as U8"
        )
    shape, of_scales = stored.shape(blocks), stored.shape(scales)
    if len(shape) != 4 or shape[-1] != _BLOCK // 2 or of_scales != shape[:-1]:
        raise CheckpointError(
            f"tensor {blocks} is {list(shape)} and its scales are {list(of_scales)}; MXFP4 has "
            "blocks [experts, out, in / 32, 16] and scales [experts, out, in / 32]"
        )
    return Mxfp4Weight(name, (*shape[:2], shape[2] * _BLOCK))
