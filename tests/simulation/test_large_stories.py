"""Longer histories of larger cells, and what makes a history worth anything: it can be repeated."""

import os

import pytest

from tests.simulation.story import BUSY, SMALL, Shape, play

pytestmark = pytest.mark.extended

COUNT = int(os.environ.get("SAX_STORIES", "300")) // 20
IN_CI = 3  # the night has all; whoever asks for more stories, too
REST = [pytest.mark.nightly] * (COUNT <= 15)


@pytest.mark.timeout(0 if COUNT > 15 else 300)
@pytest.mark.parametrize("shape", [Shape(), BUSY], ids=["many", "busy"])
@pytest.mark.parametrize(
    "seed",
    [*range(IN_CI), *(pytest.param(n, marks=REST) for n in range(IN_CI, COUNT))],
)
def test_a_cell_of_many_in_trouble_keeps_every_acknowledged_call(seed, shape):
    play(seed, shape)


def shown(seed: int) -> list[tuple[str, ...]]:
    """What was called, what came of it, and where it stands in the log."""
    outcome = play(seed, SMALL)
    calls = [(c.by, c.kind, c.outcome, c.error) for c in outcome.history.calls]
    entries = [(str(e.sequence), type(e.record).__name__, e.record.by) for e in outcome.entries]
    return [*calls, *entries, *((line,) for line in outcome.trace)]


def test_the_same_seed_plays_the_same_story():
    assert shown(11) == shown(11)


def test_stories_are_full_of_trouble():
    """Calls of every outcome, several leaders, replicas loaded again: no fair-weather histories."""
    outcomes = [play(seed, SMALL) for seed in range(40)]
    counts = {
        outcome: sum(one.history.count(outcome) for one in outcomes)
        for outcome in ("done", "refused", "unknown")
    }
    assert min(counts.values()) > 100
    assert sum(one.leaders for one in outcomes) > 60
    assert sum(server.loads for one in outcomes for server in one.servers.values()) > 200
