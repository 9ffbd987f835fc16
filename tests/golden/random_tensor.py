"""Random weights that follow from a tensor's name alone, the same for the maker and the tests.

Bits come from numpy's PCG64, whose stream never changes, and are turned into numbers here, so no
version of a distribution matters. Knows no family: sizes follow from the shape, and from a few
words in the name.
"""

from __future__ import annotations

import math
import zlib

import numpy as np

_EMBEDDINGS = ("embed", "wte", "wpe")
_NUMBERS, _LEAST = "tid2eid", 8  # tables of numbers of experts, of which there are so many or more


def random_tensor(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """f32 numbers for one tensor: vectors in 0.5..1.5, matrices that keep a signal's size.

    Vectors are norms and biases, far from the values at which they do nothing. Tables of numbers
    are i64.
    """
    units = uniform(name, math.prod(shape)).reshape(shape)
    if name.endswith(_NUMBERS):
        return np.asarray(units * _LEAST, np.int64)
    if len(shape) < 2:
        return np.asarray(0.5 + units, np.float32)
    spread = _spread(name, shape[-1]) * math.sqrt(12.0)
    return np.asarray((units - 0.5) * spread, np.float32)


def uniform(name: str, count: int) -> np.ndarray:
    """f64[count] in 0..1, from the name."""
    bits = np.random.PCG64(zlib.crc32(name.encode())).random_raw(count)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _spread(name: str, width: int) -> float:
    """The standard deviation of a matrix's numbers."""
    if any(word in name for word in _EMBEDDINGS):
        return 0.5
    # Saxml's families cap attention logits at a fixed 50, which ordinary sizes never come near.
    gain = 3.0 if name.endswith("qkv.kernel") else 1.2
    return gain / math.sqrt(width)
