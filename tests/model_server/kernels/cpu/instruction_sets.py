"""The native kernels on each instruction set that this machine has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from model_server.kernels.cpu import native
from model_server.kernels.cpu.build import INSTRUCTIONS

NAMES = sorted({name for names in INSTRUCTIONS.values() for name in names})


@pytest.fixture(params=NAMES)
def instructions(request: pytest.FixtureRequest) -> Iterator[str]:
    """Choose one instruction set for the test; skips those that this machine has not."""
    library = native.library()
    if library is None:
        pytest.skip("sax was installed without its native kernels: no compiler was found")
    before = library.sax_cpu_name()
    if not library.sax_cpu_choose(request.param.encode()):
        pytest.skip(f"this machine has no {request.param}")
    yield request.param
    library.sax_cpu_choose(before)
