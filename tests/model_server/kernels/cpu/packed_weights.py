"""Quantised weights, and their forms on a CPU."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from model_server.checkpoints.packed import FLOAT4, PackedBlocks, Packing
from model_server.kernels.cpu.tiles import ByteForm
from model_server.models.weights.quantization import quantize
from model_server.models.weights.tiled import form_of


def blocks_of(numbers: np.ndarray, packing: Packing) -> tuple[ByteForm, PackedBlocks]:
    """Quantise f32[N, K]; float4 as MXFP4, with powers of two as scales."""
    form = form_of(numbers.shape, packing)
    assert form.fits
    if packing.kind != FLOAT4:
        blocks = quantize(numbers, packing)
        return form, PackedBlocks(blocks.values.astype(np.int8), blocks.scales, blocks.offsets)
    blocked = numbers.reshape(len(numbers), -1, form.block)
    scales = np.exp2(np.floor(np.log2(np.abs(blocked).max(-1) / 4))).astype(np.float32)
    values = (blocked / scales[..., None]).astype(ml_dtypes.float4_e2m1fn)
    codes = values.view(np.uint8).reshape(numbers.shape)
    signed = ((codes ^ 8).astype(np.int8) - 8).astype(np.int8)
    return form, PackedBlocks(signed, scales, None, float4=True)
