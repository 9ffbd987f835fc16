"""Weights in small numbers for tests, each with the numbers that it stands for."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from model_server.kernels.small_numbers import Packed

STORED = {
    "int8": jnp.int8,
    "float8": jnp.float8_e4m3fn,
    "int4": jnp.uint8,
    "bfloat16": jnp.bfloat16,
}


def packed_weight(
    shape: tuple[int, ...], kind: str, blocks: int = 1, *, offset: bool = False, seed: int = 0
) -> tuple[Packed, np.ndarray]:
    """[..., out, in], and its numbers in float64."""
    rng = np.random.default_rng(seed)
    small = _numbers(rng, shape, kind)
    if kind == "bfloat16":
        return Packed(jnp.asarray(small, jnp.bfloat16), None, None), small
    scales = rng.uniform(0.5, 1.5, (*shape[:-1], blocks)).astype(np.float32)
    offsets: Any = rng.normal(size=scales.shape).astype(np.float32) if offset else None
    wide = small.reshape(*scales.shape, -1) * scales[..., None].astype(np.float64)
    if offset:
        wide = wide + offsets[..., None]
    stored = _bytes(small) if kind == "int4" else small
    held = Packed(
        jnp.asarray(stored, STORED[kind]),
        jnp.asarray(scales),
        None if offsets is None else jnp.asarray(offsets),
    )
    return held, wide.reshape(shape)


def _numbers(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    if kind == "int4":
        return rng.integers(-8, 8, shape).astype(np.float64)
    if kind == "int8":
        return rng.integers(-127, 128, shape).astype(np.float64)
    return np.asarray(jnp.asarray(rng.normal(size=shape), STORED[kind]), np.float64)


def _bytes(small: np.ndarray) -> np.ndarray:
    nibbles = (small.astype(np.int64) & 15).astype(np.uint8)
    return nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)
