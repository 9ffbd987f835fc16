"""Freeing arrays: what nobody holds goes, what somebody holds goes too."""

from __future__ import annotations

import gc
import mmap
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from model_server.kernels.aligned import SpareBlocks, WeightMemory
from model_server.sharing.freeing import free, give_back, give_back_code, give_back_unused


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


def test_neighbours_in_one_block_are_given_back_together_and_one_between_them_is_whole() -> None:
    memory, size = WeightMemory(), 600 << 10  # of no whole pages with what is before them
    made = [memory.empty((size + 64,), np.uint8) for _ in range(64)]
    for number, each in enumerate(made):
        each.fill(number)
    arrays = jax.block_until_ready([jax.device_put(each) for each in made])
    kept = arrays.pop(40)
    del made, each
    before = resident()
    free(arrays)
    assert before - resident() > 61 * size
    assert set(np.asarray(kept).tolist()) == {40}


def lazily_free() -> int:
    """Bytes that the system takes once it runs short."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("LazyFree:"))


def test_memory_that_is_freed_lazily_is_the_systems_until_it_is_used_again() -> None:
    blocks, size = SpareBlocks(), 600 << 10

    def laid(first: int) -> list[jax.Array]:
        memory = WeightMemory(blocks.block)
        made = [memory.empty((size + 64,), np.uint8) for _ in range(64)]
        for number, each in enumerate(made, first):
            each.fill(number)
        return jax.block_until_ready([jax.device_put(each) for each in made])

    arrays = laid(0)
    free(arrays, blocks.holds)
    assert lazily_free() > 61 * size
    before = resident()
    arrays = laid(64)
    assert resident() - before < size, "memory was new from the system"
    kept = arrays.pop(40)
    free(arrays, blocks.holds)
    assert set(np.asarray(kept).tolist()) == {104}
    before = resident()
    del kept
    gc.collect(0)
    give_back(blocks.drop())
    assert before - resident() > 61 * size
    assert lazily_free() < size


def test_memory_that_was_freed_in_small_pieces_is_given_back() -> None:
    pieces = [bytearray(30_000) for _ in range(4000)]
    last = bytearray(30_000)  # above it the C library would give back by itself
    del pieces
    before = resident()
    give_back_unused()
    assert before - resident() > 50 << 20
    assert len(last) == 30_000


def test_code_of_xla_leaves_the_memory_and_comes_back_as_it_runs() -> None:
    ran = jax.jit(lambda x: jnp.sort(x)[::-1] @ x)
    expected = ran(jnp.arange(8.0))
    before = resident()
    assert give_back_code() > 50 << 20
    assert before - resident() > 10 << 20
    assert jax.jit(lambda x: jnp.cumsum(x)[-1])(jnp.ones(8)) == 8  # compiles
    assert ran(jnp.arange(8.0)) == expected


def test_without_a_map_of_its_memory_a_process_keeps_its_code(tmp_path: Path) -> None:
    assert give_back_code(tmp_path / "maps") == 0
