"""The library of native CPU kernels: found, registered with XLA and described.

The build is optional; where the library is absent, products and attention are XLA's.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import re
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import NamedTuple

import jax
import jaxlib

logger = logging.getLogger(__name__)

_TARGETS = tuple(
    f"sax_cpu_{kernel}"
    for kernel in (
        *("plain", "quantized", "low_rank"),
        # A kernel whose arguments changed has another name, so that an older library is refused.
        *("unwritten", "overwrite", "write", "attend_to_pages"),
        *("rms_norm", "gated", "heads"),
        "choose_tokens",
    )
)
_CHOICE, _OFF = "SAX_CPU_KERNELS", "off"  # instruction sets, or XLA's kernels
ISLANDS = "native_kernels"  # attribute of a proxy server's devices: their instruction set
_WITHOUT_AMX = {
    0: "",
    -1: " (the operating system does not grant AMX)",
    -2: " (built by a compiler that does not know AMX)",
}
_FILE = "SAX_CPU_LIBRARY"  # another library than the one that was built with sax


class InUse(NamedTuple):
    instructions: str  # the instruction set
    threads: int
    # Rows from which AMX multiplies int8 and int4; bfloat16 always. 0: no AMX; below: why not
    rows_on_tiles: int

    @property
    def units(self) -> str:
        """Say which products use AMX, or why none does where the machine has it; "": it has not."""
        if self.rows_on_tiles <= 0:
            return _WITHOUT_AMX[self.rows_on_tiles]
        return f" (bfloat16 from 1 row on, int8 and int4 from {self.rows_on_tiles})"


class Opened(NamedTuple):
    """The library, or the reason why there is none."""

    library: ctypes.CDLL | None
    reason: str = ""


@functools.cache
def opened() -> Opened:
    """Load the library and register its kernels with XLA, once."""
    if os.environ.get(_CHOICE) == _OFF:
        return Opened(None, f"{_CHOICE}={_OFF}")
    file = _file()
    if file is None:
        return Opened(
            None, "sax was installed without the native kernels (docs/explanation/cpu.md: Building)"
        )
    try:
        loaded = ctypes.CDLL(os.fspath(file))
        kernels = {target: getattr(loaded, target) for target in _TARGETS}
        interface = loaded.sax_cpu_interface()
        _ = loaded.sax_cpu_rows_on_tiles, loaded.sax_cpu_measured
    except (OSError, AttributeError) as exc:  # of another machine, libstdc++ or version of sax
        return Opened(None, f"the native kernels cannot be loaded, build them again: {exc}")
    # XLA would refuse it when its CPU client starts, and the client with it.
    if interface != _interface_of_jaxlib():
        return Opened(None, "the native kernels are for another jaxlib, build them again")
    for target, kernel in kernels.items():
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(kernel), platform="cpu")
    loaded.sax_cpu_name.restype = ctypes.c_char_p
    name = loaded.sax_cpu_name().decode()
    _tell_of_speeds(loaded)
    _tell_of_another_choice(name)
    if (theirs := _workers_kernels()) not in (None, name):
        return Opened(None, f"workers have {theirs or 'no native kernels'}, this machine {name}")
    return Opened(loaded)


def _workers_kernels() -> str | None:
    """Return the instruction set of a proxy server's workers; None: programs run here."""
    if "proxy" not in str(jax.config.jax_platforms):  # pyright: ignore[reportAttributeAccessIssue]
        return None
    return getattr(jax.devices()[0], ISLANDS, "")


def _interface_of_jaxlib() -> int:
    """Return the version of XLA's interface, 1000 times the major number plus the minor."""
    header = Path(jaxlib.__file__).parent / "include" / "xla" / "ffi" / "api" / "c_api.h"
    found = re.findall(
        r"^#define XLA_FFI_API_M(?:AJ|IN)OR (\d+)$", header.read_text(), re.MULTILINE
    )
    major, minor = map(int, found)
    return major * 1000 + minor


def _file() -> Path | None:
    if named := os.environ.get(_FILE):
        return Path(named)
    folder = Path(__file__).parent
    built = (folder / f"_native{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next(filter(Path.exists, built), None)


def _tell_of_another_choice(name: str) -> None:
    wanted = os.environ.get(_CHOICE, "")
    if wanted and name not in wanted.split(","):
        logger.warning("this machine has no kernels %s=%s, it uses %s", _CHOICE, wanted, name)


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
    return InUse(
        loaded.sax_cpu_name().decode(), loaded.sax_cpu_threads(), loaded.sax_cpu_rows_on_tiles()
    )


def described() -> str:
    """Return the instruction set and threads in use, or why XLA's kernels are."""
    used = in_use()
    if not used:
        return f"XLA's: {opened().reason}"
    return f"{used.instructions}{used.units}, {used.threads} threads"


if __name__ == "__main__":
    print(described())  # noqa: T201
