"""The native kernels on each instruction set that this machine has."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from model_server.kernels.cpu import native
from model_server.kernels.cpu.build import INSTRUCTIONS, TILES

NAMES = sorted({name for names in INSTRUCTIONS.values() for name in names})
# Whose products are on matrix units; all else is that of the fastest of the others.
TILE_NAMES = sorted({name for names in TILES.values() for name in names})
# Which round queries and weights of values to bfloat16, where pages have these.
PAIRED_NAMES = {"avx512_bf16"}
InstructionSets = Callable[[], Iterator[str]]


@pytest.fixture
def instruction_sets() -> Iterator[InstructionSets]:
    """Call it to go through those of this machine: each is chosen until the next one is asked for.

    A test that uses it is skipped where the library was not built.
    """
    yield from _chosen_of(NAMES)


@pytest.fixture
def product_sets() -> Iterator[InstructionSets]:
    """As `instruction_sets`, with the matrix units for products and the model of one."""
    yield from _chosen_of([*NAMES, *TILE_NAMES])


def _chosen_of(names: list[str]) -> Iterator[InstructionSets]:
    library = native.library()
    if library is None:
        pytest.skip("sax was installed without its native kernels: no compiler was found")
    before = library.sax_cpu_name()

    def chosen() -> Iterator[str]:
        found = [name for name in names if library.sax_cpu_choose(name.encode())]
        assert found, "there is none that runs anywhere"
        for name in found:
            library.sax_cpu_choose(name.encode())
            yield name

    yield chosen
    library.sax_cpu_choose(before)
