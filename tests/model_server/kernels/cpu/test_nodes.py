"""Threads and weights on NUMA nodes: invented ones, and the one of this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from model_server.kernels.cpu import native
from model_server.kernels.cpu.nodes import (
    NumaNode,
    ThreadShare,
    keep_threads,
    nodes_in,
    numbers_in,
    parts_of,
    place_array,
    shares_of,
)
from model_server.kernels.cpu.tiles import plain_product, plain_tiles

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nodes are told as Linux does")


def machine(folder: Path) -> Path:
    """Two sockets with two threads a core, and a node that is memory alone."""
    for index, processors in enumerate(("0-3,8-11\n", "4-7,12-15\n", "\n")):
        (folder / f"node{index}").mkdir()
        (folder / f"node{index}" / "cpulist").write_text(processors)
    (folder / "online").write_text("0-2\n")
    return folder


def test_lists_of_processors_are_read_as_linux_writes_them() -> None:
    assert numbers_in("0-2,7,10-11\n") == {0, 1, 2, 7, 10, 11}
    assert numbers_in("\n") == set()


def test_nodes_have_the_processors_and_memory_that_the_process_may_use(tmp_path: Path) -> None:
    folder = machine(tmp_path)
    whole = nodes_in(folder, range(16), {0, 1, 2})
    assert [(each.index, len(each.processors), each.memory) for each in whole] == [
        (0, 8, True),
        (1, 8, True),
    ]
    assert whole[1].processors == (4, 5, 6, 7, 12, 13, 14, 15)
    assert nodes_in(folder, [4, 5], {0}) == [NumaNode(1, (4, 5), False)]  # numactl -N 1 -m 0
    assert nodes_in(folder, [2, 3, 4], {0, 1}) == [
        NumaNode(0, (2, 3), True),
        NumaNode(1, (4,), True),
    ]
    assert nodes_in(tmp_path / "none", range(16), {0}) == []


@pytest.mark.parametrize(
    ("processors", "threads", "wanted"),
    [
        ((8, 8), 16, [(0, 0, 8), (1, 8, 16)]),
        ((8, 8), 3, [(0, 0, 2), (1, 2, 3)]),
        ((6, 2), 4, [(0, 0, 3), (1, 3, 4)]),
        ((8, 8), 1, [(0, 0, 1)]),
        ((4, 4, 4, 4), 2, [(0, 0, 1), (2, 1, 2)]),
        ((2,), 5, [(0, 0, 5)]),
        ((), 4, []),
    ],
)
def test_threads_are_divided_as_processors_are(
    processors: tuple[int, ...], threads: int, wanted: list[tuple[int, int, int]]
) -> None:
    nodes = [NumaNode(index, tuple(range(count)), True) for index, count in enumerate(processors)]
    made = shares_of(nodes, threads)
    assert [(each.node.index, each.first, each.end) for each in made] == wanted


def test_a_weight_is_divided_as_threads_are_on_borders_of_pages() -> None:
    shares = shares_of([NumaNode(0, (0, 1, 2), True), NumaNode(1, (3,), True)], 4)
    assert parts_of(40 * 4096 + 100, shares, 4096) == [(0, 30 * 4096), (30 * 4096, 40 * 4096 + 100)]
    assert parts_of(100, shares, 4096) == [(0, 0), (0, 100)]


def product() -> np.ndarray:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(500, 192)).astype(ml_dtypes.bfloat16)
    x = jnp.asarray(rng.normal(size=(5, 192)), jnp.float32)
    return np.asarray(plain_product(weight.shape, x, jnp.asarray(plain_tiles(weight))))


def test_threads_stay_on_the_processors_of_their_nodes_and_compute_the_same_bits() -> None:
    used, allowed = native.in_use(), sorted(os.sched_getaffinity(0))
    if used is None or used.threads < 2 or len(allowed) < 2:
        pytest.skip("there is one thread, or no library")
    wanted = product()
    nodes = [NumaNode(0, tuple(allowed[:1]), True), NumaNode(1, tuple(allowed[1:]), True)]
    shares = (ThreadShare(nodes[0], 0, 1), ThreadShare(nodes[1], 1, used.threads))
    ids = keep_threads(shares)
    try:
        assert len(set(ids)) == used.threads - 1
        assert all(os.sched_getaffinity(each) == set(allowed[1:]) for each in ids)
        assert os.sched_getaffinity(0) == set(allowed)
        np.testing.assert_array_equal(product(), wanted)
    finally:
        for each in ids:
            os.sched_setaffinity(each, allowed)


def test_a_weight_is_moved_and_keeps_its_numbers() -> None:
    index = min(numbers_in(Path("/sys/devices/system/node/has_memory").read_text()))
    shares = [
        ThreadShare(NumaNode(index, (0,), True), 0, 1),
        ThreadShare(NumaNode(index, (1,), True), 1, 2),
    ]
    weight = jnp.arange(100_000, dtype=jnp.float32)
    try:
        assert place_array(weight, shares) == weight.nbytes
    except PermissionError:
        pytest.skip("this container forbids policies of memory")
    start, policy = weight.unsafe_buffer_pointer(), "prefer"
    areas = [each.split() for each in Path("/proc/self/numa_maps").read_text().splitlines()]
    before = [each for each in areas if int(each[0], 16) <= start + 8192]
    assert before[-1][1].startswith(policy)
    np.testing.assert_array_equal(weight, np.arange(100_000))
