"""A short run with real processes; `make chaos` makes long ones."""

import pytest

from tests.chaos.story import Shape, play
from tests.stores import seaweed

SECONDS = 9.0


@pytest.mark.timeout(240)
@pytest.mark.parametrize("store", ["seaweedfs", pytest.param("folder", marks=pytest.mark.nightly)])
async def test_a_cell_of_real_processes_in_trouble_keeps_every_acknowledged_call(store, tmp_path):
    if store == "seaweedfs" and (why := seaweed.missing()):
        pytest.skip(why)
    # A SeaweedFS that was killed takes its seconds to come back: that is for longer runs.
    shape = Shape(store, SECONDS, admins=2, clients=3, kill_store=False)
    outcome = await play(7, shape, tmp_path)
    assert outcome.history.count("done") > 10
