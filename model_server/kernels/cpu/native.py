"""The library of native CPU kernels: found, registered with XLA and described.

The build is optional; where the library is absent, products and attention are XLA's.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from functools import cache
from typing import NamedTuple

import jax
import numpy as np
from jaxlib import lapack

from model_server.kernels.cpu.shared_library import CHOICE, Opened, instruction_set, load

logger = logging.getLogger(__name__)

_TARGETS = tuple(
    f"sax_cpu_{kernel}"
    for kernel in (
        *("plain", "floats", "low_rank", "experts", "experts_gated"),
        # A kernel whose arguments changed has another name, so that an older library is refused.
        *("in_bytes", "experts_in_bytes", "experts_in_bytes_gated"),
        *("unwritten", "overwrite", "write", "attend_over_pages", "attend_whole", "score_tokens"),
        *("rms_norm", "layer_norm", "gated", "activated", "heads", "mix", "balance", "curve"),
        *("dense", "remember", "convolve"),
        "choose_tokens",
    )
)
_NUMBERS = ("sax_cpu_threads", "sax_cpu_rows_on_tiles", "sax_cpu_queries_on_tiles")  # of `InUse`
ISLANDS = "native_kernels"  # attribute of a proxy server's devices: their instruction set
_WITHOUT_AMX = {
    0: "",
    -1: " (the operating system does not grant AMX)",
    -2: " (built by a compiler that does not know AMX)",
}


class InUse(NamedTuple):
    instructions: str  # the instruction set
    threads: int
    # Rows from which AMX multiplies int8 and int4; bfloat16 always. 0: no AMX; below: why not
    rows_on_tiles: int
    queries_on_tiles: int = -1  # query rows of a head from which AMX computes attention; -1: none

    @property
    def units(self) -> str:
        """Say which products use AMX, or why none does where the machine has it; "": it has not."""
        if self.rows_on_tiles <= 0:
            return _WITHOUT_AMX[self.rows_on_tiles]
        number = self.queries_on_tiles
        attention = f"attention from {number} queries" if number > 0 else "no attention"
        return f" (bfloat16 from 1 row on, int8 and int4 from {self.rows_on_tiles}, {attention})"


@functools.cache
def opened() -> Opened:
    """Load the library and register its kernels with XLA, once."""
    found = load((*_TARGETS, *_NUMBERS, "sax_cpu_thread_ids", "sax_cpu_measured"))
    if (loaded := found.library) is None:
        return found
    for target in _TARGETS:
        kernel = getattr(loaded, target)
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(kernel), platform="cpu")
    name = instruction_set(loaded)
    _tell_of_speeds(loaded)
    _tell_of_another_choice(name)
    if (theirs := _workers_kernels()) not in (None, name):
        return Opened(None, f"workers have {theirs or 'no native kernels'}, this machine {name}")
    return found


def _workers_kernels() -> str | None:
    """Return the instruction set of a proxy server's workers; None: programs run here."""
    if "proxy" not in str(jax.config.jax_platforms):  # pyright: ignore[reportAttributeAccessIssue]
        return None
    return getattr(jax.devices()[0], ISLANDS, "")


def _tell_of_another_choice(name: str) -> None:
    wanted = os.environ.get(CHOICE, "")
    if wanted and name not in wanted.split(","):
        logger.warning("this machine has no kernels %s=%s, it uses %s", CHOICE, wanted, name)


def _tell_of_speeds(loaded: ctypes.CDLL) -> None:
    loaded.sax_cpu_measured.restype = ctypes.c_char_p
    if speeds := loaded.sax_cpu_measured().decode():
        logger.info("products of 8 rows in billions of operations per second: %s", speeds)


def library() -> ctypes.CDLL | None:
    """Return the library; None: absent or turned off."""
    return opened().library


def available() -> bool:
    return library() is not None


def in_use() -> InUse | None:
    """Return what the kernels run on; None: there are none."""
    loaded = library()
    if loaded is None:
        return None
    return InUse(instruction_set(loaded), *(getattr(loaded, name)() for name in _NUMBERS))


def described() -> str:
    """Return the instruction set and threads in use, or why XLA's kernels are."""
    used = in_use()
    if not used:
        return f"XLA's: {opened().reason}"
    return f"{used.instructions}{used.units}, {used.threads} threads"


def program_key() -> str:
    """As `described`, without what each start measures: for what is kept from one to the next."""
    used = in_use()
    if not used:
        return described()
    return f"{used.instructions}, {used.threads} threads"


@cache
def load_lapack() -> None:
    """Load LAPACK before a program runs that this process did not lower.

    jax loads it when it lowers a program that calls it. A process that is handed such a program,
    from another host, a file or a client, would jump to nowhere.
    """
    lapack.prepare_lapack_call("trsm_ffi", np.float32)


if __name__ == "__main__":
    print(described())  # noqa: T201
