"""NUMA nodes of a machine with several: the kernels' threads and weights are divided over them.

A kernel's threads have equal shares of a weight, which follow each other in memory as the threads
do (`src/threads.cc`). So each node's threads are kept on its processors, and the part of each
weight that they read first is moved to its memory. On one node nothing is done. No bit depends on
it: what a thread leaves, others take.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import platform
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax

from model_server.kernels.cpu import native

logger = logging.getLogger(__name__)

CHOICE, _OFF = "SAX_CPU_NODES", "off"
_NODES, _STATUS = Path("/sys/devices/system/node"), Path("/proc/self/status")
# Numbers of Linux's calls mbind and get_mempolicy, and what is asked of them.
_CALLS = {"x86_64": (237, 239), "aarch64": (235, 236)}
_PREFERRED, _INTERLEAVED, _MOVE = 1, 3, 2
_MOST_NODES = 64  # bits of a mask


class NumaNode(NamedTuple):
    index: int
    processors: tuple[int, ...]  # that this process may use
    memory: bool  # it may use the node's


class ThreadShare(NamedTuple):
    """The threads `first` to `end` of all, and as much of each weight, are one node's."""

    node: NumaNode
    first: int
    end: int


def numbers_in(text: str) -> set[int]:
    """Return the numbers of a list as Linux writes them, such as "0-3,8"."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        found |= set(range(int(first), int(last or first) + 1))
    return found


def nodes_in(folder: Path, processors: Iterable[int], memory: Iterable[int]) -> list[NumaNode]:
    """Return the nodes with processors that may be used; none where Linux does not tell of any."""
    allowed, memories, found = set(processors), set(memory), []
    for file in folder.glob("node[0-9]*/cpulist"):
        index = int(file.parent.name.removeprefix("node"))
        usable = numbers_in(file.read_text()) & allowed
        if usable:
            found.append(NumaNode(index, tuple(sorted(usable)), index in memories))
    return sorted(found)


def shares_of(nodes: Sequence[NumaNode], threads: int) -> tuple[ThreadShare, ...]:
    """Divide the threads in their order, as the processors are; of nodes that get any."""
    total, before, first, made = sum(len(each.processors) for each in nodes), 0, 0, []
    for node in nodes:
        before += len(node.processors)
        end = (2 * threads * before + total) // (2 * total)
        if end > first:
            made.append(ThreadShare(node, first, end))
        first = end
    return tuple(made)


def parts_of(size: int, shares: Sequence[ThreadShare], page: int) -> list[tuple[int, int]]:
    """Return where each share's bytes begin and end, on borders of pages of memory."""
    threads = shares[-1].end
    borders = [size * each.first // threads // page * page for each in shares] + [size]
    return list(zip(borders, borders[1:], strict=False))


@functools.cache
def shares() -> tuple[ThreadShare, ...]:
    """Return the shares of this process's threads; one or none: there is nothing to divide."""
    used = native.in_use()
    if used is None or not hasattr(os, "sched_getaffinity"):
        return ()
    return shares_of(_nodes(), used.threads)


def _nodes() -> list[NumaNode]:
    if os.environ.get(CHOICE) == _OFF:
        return []
    told = re.search(r"^Mems_allowed_list:(.*)$", _STATUS.read_text(), re.MULTILINE)
    return nodes_in(_NODES, os.sched_getaffinity(0), numbers_in(told[1] if told else ""))


@functools.cache
def divide_threads() -> None:
    """Keep each node's threads on its processors, if there are several nodes, and log it; once.

    The thread that calls a kernel, which has the first share, is XLA's and stays where Linux puts
    it.
    """
    made = shares()
    if len(made) > 1:
        keep_threads(made)
    told = (
        f"{each.end - each.first} on the {len(each.node.processors)} processors of node "
        f"{each.node.index}"
        for each in made
    )
    logger.info("threads of the CPU kernels: %s", ", ".join(told) or "not divided over NUMA nodes")


def keep_threads(made: Sequence[ThreadShare]) -> list[int]:
    """Set where the kernels' own threads may run; returns their ids."""
    library, threads = native.library(), made[-1].end
    assert library is not None, "there are threads"
    ids = (ctypes.c_int * threads)()
    count = library.sax_cpu_thread_ids(ids, threads)
    by_thread = [each.node.processors for each in made for _ in range(each.first, each.end)]
    for index in range(1, count):
        os.sched_setaffinity(ids[index], by_thread[index])
    return list(ids[1:count])


def place(weights: Iterable[jax.Array], pages: Iterable[jax.Array]) -> None:
    """Move each node's share of the weights to its memory, and spread pages over the nodes.

    Only with several nodes, and not if the process was started with a policy for its memory, as
    `numactl --interleave` gives it.
    """
    made = [each for each in shares() if each.node.memory]
    if len(made) < 2 or len(made) < len(shares()):
        return
    try:
        if _has_policy():
            logger.info("weights and pages are where the policy of the process's memory puts them")
            return
        moved = sum(place_array(each, made) for each in weights)
        every = [each.node.index for each in made]
        for each in pages:
            _bind(each.unsafe_buffer_pointer(), each.nbytes, _INTERLEAVED, every)
    except OSError as exc:  # containers often forbid it
        logger.warning("weights and pages are not divided over the NUMA nodes: %s", exc)
        return
    logger.info("%d MiB of weights divided over %d NUMA nodes", moved >> 20, len(made))


def place_array(array: jax.Array, made: Sequence[ThreadShare]) -> int:
    """Move the parts of an array to the nodes of these shares; returns its bytes.

    Raises OSError.
    """
    start = array.unsafe_buffer_pointer()
    page = os.sysconf("SC_PAGE_SIZE")
    lost = -start % page  # before its first whole page
    for share, (begin, end) in zip(made, parts_of(array.nbytes - lost, made, page), strict=True):
        _bind(start + lost + begin, end - begin, _PREFERRED, [share.node.index])
    return array.nbytes


def _bind(start: int, size: int, policy: int, nodes: Iterable[int]) -> None:
    """Set the policy of the whole pages of some memory, and move what lies elsewhere."""
    page = os.sysconf("SC_PAGE_SIZE")
    first, end = -(-start // page) * page, (start + size) // page * page
    indexes = list(nodes)
    if max(indexes) >= _MOST_NODES:
        raise OSError(f"memory is divided over the first {_MOST_NODES} nodes only")
    if end > first:
        mask = ctypes.c_uint64(sum(1 << node for node in indexes))
        _call(0, first, end - first, policy, ctypes.byref(mask), _MOST_NODES + 1, _MOVE)


def _has_policy() -> bool:
    mode = ctypes.c_int(0)
    _call(1, ctypes.byref(mode), None, 0, None, 0)
    return mode.value != 0


def _call(which: int, *arguments: object) -> None:
    """Call Linux. Raises OSError."""
    numbers = _CALLS.get(platform.machine())
    if numbers is None:
        raise OSError(f"not known how on {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    given = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    if libc.syscall(ctypes.c_long(numbers[which]), *given) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
