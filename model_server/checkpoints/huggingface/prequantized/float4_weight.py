"""Float4 values, two to a byte, with a scale for each block of a row: NVFP4 and MXFP4.

Values are u8[out, in / 2], the low half first. MXFP4 has exponents as scales, of 32 columns each.
NVFP4 has float8 scales, of 16 columns each, and one for the whole tensor, which multiplies
(modelopt) or divides (compressed-tensors) them. Their product needs more bits than the bfloat16
that scales of float4 have on the device, so NVFP4 is held as int8: twice its values, up to 12.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from model_server.checkpoints.huggingface.prequantized.mxfp4 import int4_codes
from model_server.checkpoints.huggingface.prequantized.packed_weight import (
    PackedWeight,
    check_shape,
    matrix_shape,
)
from model_server.checkpoints.huggingface.prequantized.scaled_weight import scale_numbers
from model_server.checkpoints.huggingface.safetensors_tensors import StoredTensors
from model_server.checkpoints.packed import FLOAT4, PackedBlocks, Packing, float4_numbers
from sax.errors import CheckpointError

MX, NV = 32, 16  # columns of a block


@dataclass(frozen=True, slots=True)
class Float4Weight(PackedWeight):
    values: str
    scales: str
    whole: str | None  # the tensor's own scale; None: MXFP4
    divides: bool  # the block's scale is divided by it
    shape: tuple[int, int]

    @property
    def packing(self) -> Packing:
        return Packing(FLOAT4, MX, False) if self.whole is None else Packing("int8", NV, False)

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.values, self.scales, *([self.whole] if self.whole else []))

    def read(self, stored: StoredTensors, *region: slice) -> PackedBlocks:
        rows, columns = region
        halves = slice(columns.start // 2, columns.stop // 2)
        codes = int4_codes(stored.read(self.values, (rows, halves))[:, None])
        blocks = slice(columns.start // self.step, columns.stop // self.step)
        scales = scale_numbers(stored.read(self.scales, (rows, blocks)))
        if self.whole is None:
            return PackedBlocks(codes, scales, None, float4=True)
        whole = stored.read(self.whole).astype(np.float32).reshape(())
        with np.errstate(all="ignore"):  # a damaged file may hold any scale
            scales = scales / whole if self.divides else scales * whole
        doubled = (2 * float4_numbers(codes)).astype(np.int8)
        return PackedBlocks(doubled, scales * np.float32(0.5), None)


def float4_weight(
    values: str,
    scales: str,
    whole: str | None,
    dtypes: Mapping[str, str],
    stored: StoredTensors,
    *,
    divides: bool = False,
) -> Float4Weight:
    """Return the weight of these tensors. Raises CheckpointError if they do not fit.

    whole: NVFP4's scale of the whole tensor.
    """
    for name in (scales, *([whole] if whole else [])):
        if name not in dtypes:
            raise CheckpointError(
                f"tensor {values} holds float4 and {name} is missing: fetch the checkpoint again"
            )
    wanted = ("F8_E4M3",) if whole else ("U8", "F8_E8M0")
    if dtypes[values] != "U8" or dtypes[scales] not in wanted:
        raise CheckpointError(
            f"tensor {values} is {dtypes[values]} and {scales} is {dtypes[scales]}; "
            f"{'NVFP4' if whole else 'MXFP4'} has U8 and {' or '.join(wanted)}"
        )
    rows, halves = matrix_shape(stored, values)
    block = NV if whole else MX
    if 2 * halves % block:
        raise CheckpointError(
            f"tensor {values} has {2 * halves} numbers a row, which are no whole blocks of {block}"
        )
    check_shape(stored, scales, (rows, 2 * halves // block), f"for blocks of {block} of {values}")
    if whole and stored.shape(whole) not in ((), (1,)):
        check_shape(stored, whole, (1,), f"for all of {values}")
    return Float4Weight(values, scales, whole, divides, (rows, 2 * halves))
