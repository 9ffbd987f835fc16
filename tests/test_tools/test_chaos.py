"""Short runs of `make chaos` with real processes: cells, islands and replicas that stream."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stores import seaweed
from tests.tools.chaos import story
from tests.tools.chaos.pathways.__main__ import main as play_islands
from tests.tools.chaos.stores import KINDS
from tests.tools.chaos.streams.story import play as play_streams

pytestmark = pytest.mark.nightly


@pytest.mark.timeout(240)
@pytest.mark.parametrize("store", KINDS)
async def test_a_cell_of_real_processes_in_trouble_keeps_every_acknowledged_call(
    store: str, tmp_path: Path
) -> None:
    if store == "seaweedfs" and (why := seaweed.missing()):
        pytest.skip(why)
    # A SeaweedFS that was killed takes its seconds to come back: that is for longer runs.
    shape = story.Shape(store, 9.0, admins=2, clients=3, kill_store=False)
    outcome = await story.play(7, shape, tmp_path)
    assert outcome.history.count("done") > 10


@pytest.mark.timeout(900)
def test_islands_whose_processes_are_killed_and_stopped_bring_no_wrong_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)  # each program is a new one
    assert play_islands(["--faults", "10", "--returns", "4", "--seed", "3"]) == 0


@pytest.mark.timeout(240)
async def test_no_stream_breaks_when_one_of_two_replicas_is_killed(tmp_path: Path) -> None:
    figures = await play_streams(4, 8, tmp_path)
    assert figures.faults == []
    assert figures.kills == 4
    assert figures.in_flight > 8
    assert figures.streams >= 8
