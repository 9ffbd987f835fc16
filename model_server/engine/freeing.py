"""Frees the memory of arrays without stalling the rest of the process.

`delete` of a jax array on a CPU stops every Python thread until its memory is released, up to a
second per GiB: long enough for other hosts to consider this one lost. Dropping the last reference
first releases the memory while other threads run.
"""

from __future__ import annotations

import weakref

import jax


def free(arrays: list[jax.Array]) -> None:
    """Empty the list and free the memory, even of arrays that others still reference."""
    held = [weakref.ref(array) for array in arrays]
    arrays.clear()
    for each in held:
        if (array := each()) is not None and not array.is_deleted():
            array.delete()
