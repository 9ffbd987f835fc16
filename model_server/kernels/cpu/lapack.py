"""LAPACK, whose functions a CPU's programs call by name."""

from __future__ import annotations

from functools import cache

import numpy as np
from jaxlib import lapack


@cache
def load() -> None:
    """Load LAPACK before a program runs that this process did not lower.

    jax loads it when it lowers a program that calls it. A process that is handed such a program,
    from another host, a file or a client, would jump to nowhere.
    """
    lapack.prepare_lapack_call("trsm_ffi", np.float32)
