"""The library of native CPU kernels: found, registered with XLA and described.

The build is optional; where the library is absent, products and attention are XLA's.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from pathlib import Path
from typing import NamedTuple

import jax

logger = logging.getLogger(__name__)

_TARGETS = tuple(
    f"sax_cpu_{kernel}"
    for kernel in ("plain", "quantized", "write", "attend", "low_rank", "choose_tokens")
)
_OFF = "off"  # as SAX_CPU_KERNELS: XLA's


class InUse(NamedTuple):
    instructions: str  # the instruction set
    threads: int


@functools.cache
def library() -> ctypes.CDLL | None:
    """Load the library and register its kernels with XLA; None: absent or turned off."""
    if os.environ.get("SAX_CPU_KERNELS") == _OFF:
        return None
    found = next(Path(__file__).parent.glob("_native*.so"), None)
    if found is None:
        return None
    try:
        loaded = ctypes.CDLL(os.fspath(found))
    except OSError as exc:  # built for another machine or another libstdc++
        logger.warning("the native CPU kernels cannot be loaded, XLA's are used: %s", exc)
        return None
    for target in _TARGETS:
        capsule = jax.ffi.pycapsule(getattr(loaded, target))
        jax.ffi.register_ffi_target(target, capsule, platform="cpu")
    loaded.sax_cpu_name.restype = ctypes.c_char_p
    return loaded


def available() -> bool:
    return library() is not None


def in_use() -> InUse | None:
    """Return what the kernels run on; None: there are none."""
    loaded = library()
    if loaded is None:
        return None
    return InUse(loaded.sax_cpu_name().decode(), loaded.sax_cpu_threads())
