"""Pixels of images as the numbers that towers take, cut into square patches."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from model_server.models.vision.vision_recipe import Colours

Shades = np.ndarray  # f32[256, 3]: of each byte, the number for red, green and blue


def shades_of(colours: Colours) -> Shades:
    return _shades(colours, np.dtype(np.float64))


def half_shades_of(colours: Colours) -> Shades:
    """Return the numbers rounded to bfloat16 at each step, as Llama 4 was trained with."""
    return _shades(colours, np.dtype(ml_dtypes.bfloat16))


def _shades(colours: Colours, dtype: np.dtype) -> Shades:
    scaled = (np.arange(256, dtype=np.float32)[:, None] * np.float32(colours.scale)).astype(dtype)
    centred = scaled - np.asarray(colours.mean, dtype)
    return (centred / np.asarray(colours.deviation, dtype)).astype(np.float32)


def patches_of(
    pixels: np.ndarray, shades: Shades, patch: int, merged: int, *, colours_last: bool = False
) -> np.ndarray:
    """Cut u8[h, w, 3] into f32[p, 3 * patch * patch]: colour, row and column of each patch, or row,
    column and colour.

    Patches that become one vector, a square of `merged` by `merged`, lie behind each other; so do
    such squares from left to right, then down.
    """
    high, wide = (side // (patch * merged) for side in pixels.shape[:2])
    numbers = np.stack([np.take(shades[:, c], pixels[..., c]) for c in range(3)])
    parts = numbers.reshape(3, high, merged, patch, wide, merged, patch)
    inner = (3, 6, 0) if colours_last else (0, 3, 6)
    return parts.transpose(1, 4, 2, 5, *inner).reshape(-1, 3 * patch * patch)


def places_of(high: int, wide: int, merged: int) -> np.ndarray:
    """Return row and column i32[p, 2] of the patches of an image, in the order of `patches_of`.

    high, wide: patches of a column and a row.
    """
    rows, columns = np.meshgrid(np.arange(high), np.arange(wide), indexing="ij")
    both = np.stack([rows, columns], axis=-1).astype(np.int32)
    parts = both.reshape(high // merged, merged, wide // merged, merged, 2)
    return parts.transpose(0, 2, 1, 3, 4).reshape(-1, 2)
