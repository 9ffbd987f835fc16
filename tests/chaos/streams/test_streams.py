"""A few kills of replicas under streams; `make chaos` makes hundreds."""

from pathlib import Path

import pytest

from tests.chaos.streams.story import play


@pytest.mark.nightly  # kills while another suite has the cores can come while the other server starts
@pytest.mark.extended
@pytest.mark.timeout(240)
async def test_no_stream_breaks_when_one_of_two_replicas_is_killed(tmp_path: Path) -> None:
    figures = await play(4, 8, tmp_path)
    assert figures.faults == []
    assert figures.kills == 4
    assert figures.in_flight > 8
    assert figures.streams >= 8
