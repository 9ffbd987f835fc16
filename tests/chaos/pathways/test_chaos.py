"""A few faults and returns with real processes; `make chaos` makes a hundred."""

from __future__ import annotations

import pytest

from tests.chaos.pathways.__main__ import main


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_islands_whose_processes_are_killed_and_stopped_bring_no_wrong_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)  # each program is a new one
    assert main(["--faults", "10", "--returns", "4", "--seed", "3"]) == 0
