"""Converts the number format of tensors that are written to a file."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from sax.errors import CheckpointError

DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}


def cast(name: str, values: np.ndarray, dtype: str) -> np.ndarray:
    """Convert `values`. Raises CheckpointError, naming the tensor, if they overflow `dtype`."""
    if str(values.dtype) == dtype:
        return values
    with np.errstate(over="ignore"):
        out = values.astype(DTYPES[dtype])
    if np.isfinite(values).all() and not np.isfinite(out).all():
        raise CheckpointError(
            f"tensor {name} holds numbers too large for {dtype}; use bfloat16 or float32"
        )
    return out
