"""Freeing the memory of arrays while the rest of this process goes on.

`delete` of a jax array on a CPU stops every thread of Python until its memory is gone, up to a
second per GiB: long enough for other hosts to take this one for lost. Memory that nobody refers to
any more is given back while they run. Knows nothing of models.
"""

from __future__ import annotations

import weakref

import jax


def free(arrays: list[jax.Array]) -> None:
    """Empty the list. The memory is free then, even of arrays that somebody else holds."""
    held = [weakref.ref(array) for array in arrays]
    arrays.clear()
    for each in held:
        if (array := each()) is not None and not array.is_deleted():
            array.delete()
