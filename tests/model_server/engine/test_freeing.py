"""Freeing arrays: what nobody holds goes, what somebody holds goes too."""

from __future__ import annotations

import mmap
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from model_server.engine.freeing import free


def test_arrays_are_gone_whether_or_not_somebody_holds_them() -> None:
    kept = jnp.ones(3)
    arrays = [jnp.ones(3), kept, kept]
    alone = weakref.ref(arrays[0])
    free(arrays)
    assert arrays == []
    assert alone() is None
    assert kept.is_deleted()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_memory_of_large_arrays_is_back_and_their_neighbours_are_whole() -> None:
    kept = jnp.arange(5 << 20, dtype=jnp.float32)
    arrays = [jnp.ones(50 << 20, jnp.uint8), jnp.ones((64 << 20) + 17, jnp.uint8)]
    jax.block_until_ready((kept, arrays))
    before = resident()
    free(arrays)
    assert before - resident() > 100 << 20
    assert np.array_equal(kept, np.arange(5 << 20, dtype=np.float32))
