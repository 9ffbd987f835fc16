"""The file of native CPU kernels: found, loaded, and held against the jaxlib that is installed.

Imports neither jax nor jaxlib, so that the command line can tell which kernels run here.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
from collections.abc import Iterable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import NamedTuple

CHOICE, _OFF = "SAX_CPU_KERNELS", "off"  # instruction sets, or XLA's kernels
_FILE = "SAX_CPU_LIBRARY"  # another library than the one that was built with sax
_MAJOR = 1000  # of an interface's version, as choice_handlers.cc returns it


class Opened(NamedTuple):
    """The library, or the reason why there is none."""

    library: ctypes.CDLL | None
    reason: str = ""


def load(functions: Iterable[str] = ()) -> Opened:
    """Load the library, which must have these functions."""
    if os.environ.get(CHOICE) == _OFF:
        return Opened(None, f"{CHOICE}={_OFF}")
    file = _file()
    if file is None:
        return Opened(
            None, "sax was installed without the native kernels (docs/explanation/cpu.md: Building)"
        )
    try:
        loaded = ctypes.CDLL(os.fspath(file))
        for name in functions:
            getattr(loaded, name)
        interface = loaded.sax_cpu_interface()
        loaded.sax_cpu_name.restype = ctypes.c_char_p
    except (OSError, AttributeError) as exc:  # of another machine, libstdc++ or version of sax
        return Opened(None, f"the native kernels cannot be loaded, build them again: {exc}")
    if (theirs := _interface_of_jaxlib()) is None:
        return Opened(None, "jaxlib, which calls the native kernels, is not installed")
    if not fits(interface, theirs):
        return Opened(None, "the native kernels are for another jaxlib, build them again")
    return Opened(loaded)


def fits(interface: int, theirs: int) -> bool:
    """Return True if a jaxlib of the interface `theirs` calls a library built for `interface`.

    XLA calls libraries of its own and older minor versions. It refuses others when its CPU client
    starts, and ends the client with them.
    """
    return interface // _MAJOR == theirs // _MAJOR and interface <= theirs


def instruction_set(loaded: ctypes.CDLL) -> str:
    """Return the name of the fastest instruction set of this machine, or of the chosen one."""
    return loaded.sax_cpu_name().decode()


def _interface_of_jaxlib() -> int | None:
    """Return the version of XLA's interface, _MAJOR times the major number plus the minor."""
    found = importlib.util.find_spec("jaxlib")
    if found is None or found.origin is None:
        return None
    header = Path(found.origin).parent / "include" / "xla" / "ffi" / "api" / "c_api.h"
    numbers = re.findall(
        r"^#define XLA_FFI_API_M(?:AJ|IN)OR (\d+)$", header.read_text(), re.MULTILINE
    )
    major, minor = map(int, numbers)
    return major * _MAJOR + minor


def _file() -> Path | None:
    if named := os.environ.get(_FILE):
        return Path(named)
    folder = Path(__file__).parent
    built = (folder / f"_native{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next(filter(Path.exists, built), None)
