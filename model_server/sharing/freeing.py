"""Frees memory, and keeps the garbage collector away, without stopping what else is done here.

A CPU's arrays are pages of the process, and giving back some hundred megabytes at once blocks the
memory map, on which every other thread then waits, for a quarter of a second. Pages that were
given back piece by piece beforehand cost nothing more.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

import jax
import jaxlib
import numpy as np

_PIECE = 4 << 20  # bytes, given back in some 3 ms; a multiple of large pages, which none divides
_LEAST = 64 << 10  # bytes of neighbouring arrays
_PAUSE_S = 0.02  # about a step of another model
_DONTNEED, _FREE = 4, 8  # of madvise, on Linux


def free(arrays: list[jax.Array], lazily: Callable[[int], bool] | None = None) -> None:
    """Empty the list and free the memory, even of arrays that others still reference.

    No program may be running on them, and nobody else may read their memory again. lazily: tells by
    its address whether memory stays until the system runs short, for who writes there until then.
    """
    _give_back((array for array in arrays if not array.is_deleted()), lazily)
    held = [weakref.ref(array) for array in arrays]
    arrays.clear()
    for each in held:
        if (array := each()) is not None and not array.is_deleted():
            array.delete()
    gc.collect(0)  # jax lets go of numpy's memory, in which arrays lie, no earlier


def drop(programs: dict[Any, Any]) -> None:
    """Empty the dictionary, letting other threads go on after each program.

    Taking a program apart holds the interpreter for some 40 ms.
    """
    while programs:
        programs.popitem()
        time.sleep(_PAUSE_S)


def give_back_unused() -> None:
    """Give memory that was freed back to the system.

    A load leaves more than a hundred megabytes free in small pieces, which the C library keeps.
    Other threads that need memory wait meanwhile: not while another model serves.
    """
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:  # of glibc
        trim(0)


def give_back_code(maps: Path = Path("/proc/self/maps")) -> int:
    """Take the code of XLA out of this process's memory, and return how many bytes were mapped.

    A load runs a hundred megabytes of it, steps a few, which come back from the file as they are
    run. Nothing ever writes to these pages.
    """
    folder, given = str(Path(jaxlib.__file__).parent), 0
    if not maps.exists() or (advise := _madvise()) is None:
        return given
    for line in maps.read_text().splitlines():
        place, rights, *_, path = line.split(maxsplit=5)
        if rights == "r-xp" and path.startswith(folder):
            first, end = (int(address, 16) for address in place.split("-"))
            given += end - first if advise(first, end - first, _DONTNEED) == 0 else 0
    return given


def _give_back(arrays: Iterable[jax.Array], lazily: Callable[[int], bool] | None) -> None:
    """Give the whole pages of arrays on CPU devices back to the system.

    Arrays that lie one behind the other, as weights do, are given back together.
    """
    end = first = 0
    for start, stop in (*sorted({each for array in arrays for each in _places(array)}), (0, 0)):
        if start == end:
            end = stop
            continue
        if end - first >= _LEAST:
            _advise(first, end, _FREE if lazily is not None and lazily(first) else _DONTNEED)
        first, end = start, stop


def give_back(blocks: Iterable[np.ndarray]) -> None:
    """Give the whole pages of blocks back to the system; what lies there is zero then."""
    for block in blocks:
        _advise(block.ctypes.data, block.ctypes.data + block.nbytes, _DONTNEED)


def _advise(start: int, stop: int, advice: int) -> None:
    if (advise := _madvise()) is not None:
        for piece in _pieces(start, stop):
            advise(*piece, advice)


def _places(array: jax.Array) -> Iterator[tuple[int, int]]:
    """Yield the addresses of an array's parts on CPU devices of this process."""
    alone = len(array.sharding.device_set) == 1  # then it needs no objects for its shards
    for data in [array] if alone else [shard.data for shard in array.addressable_shards]:
        (device,) = data.devices()
        if device.platform == "cpu" and "proxy" not in device.client.runtime_type:
            start: int = cast("Any", data).unsafe_buffer_pointer()
            yield start, start + data.nbytes


def _pieces(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield addresses and sizes of the whole pages between two addresses."""
    start, stop = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, stop - stop % mmap.PAGESIZE
    while start < stop:
        end = min((start // _PIECE + 1) * _PIECE, stop)
        yield start, end - start
        start = end


@cache
def _madvise() -> Any:
    """None where it does something else than on Linux."""
    if sys.platform != "linux":
        return None
    found = ctypes.CDLL(None).madvise
    found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return found


# Keeps Python's garbage collector from stopping streams.
#
# A full collection looks at every object while all threads wait. The vocabularies and traces of a
# model are hundreds of thousands of objects, so it would take some 150 ms, again and again while a
# model is compiled. What stays is therefore taken out of the collector's rounds.


def settle() -> None:
    """Let no later collection look at what is in memory now; takes a few milliseconds.

    These objects are freed as always once nothing refers to them. Only cycles among them stay, so
    call this when few temporary objects are about.
    """
    gc.collect(1)  # the young ones, or their cycles would stay
    gc.freeze()
