"""Hundreds of short histories, each with its own troubles; `make chaos` plays thousands."""

import os

import pytest

from tests.simulation.story import LIES, LOSING, LYING, SMALL, Shape, play

# SAX_STORIES=5000 plays more of them; a seed that fails is played again by its number.
COUNT = int(os.environ.get("SAX_STORIES", "300"))
GROUPS = 20  # each tells other stories of the same kind
IN_CI = 4  # the night has all; whoever asks for more stories, too
REST = [pytest.mark.nightly] * (COUNT <= 300)
groups = pytest.mark.parametrize(
    "group",
    [
        0,
        *(pytest.param(n, marks=pytest.mark.extended) for n in range(1, IN_CI)),
        *(pytest.param(n, marks=REST) for n in range(IN_CI, GROUPS)),
    ],
)


@pytest.mark.extended
@pytest.mark.timeout(0 if COUNT > 300 else 300)
@groups
def test_every_acknowledged_call_is_kept_in_order_and_every_model_converges(group):
    tell(group, SMALL)


@pytest.mark.extended
@pytest.mark.timeout(0 if COUNT > 300 else 300)
@groups
def test_nothing_is_acknowledged_in_a_store_that_was_emptied_or_lost_a_record(group):
    tell(group, LOSING)


@pytest.mark.extended
@pytest.mark.timeout(0 if COUNT > 300 else 300)
@groups
def test_lies_about_who_leads_lose_nothing_beside_other_trouble(group):
    tell(group, LYING)


@pytest.mark.extended
def test_no_lie_changes_the_leader():
    for seed in range(COUNT // GROUPS):
        outcome = play(seed, LIES)
        assert outcome.leaders == 1, f"seed {seed}: {outcome.leaders} leaders"
        assert outcome.history.count("unknown") == 0


def tell(group: int, shape: Shape) -> None:
    for seed in range(group, COUNT, GROUPS):
        try:
            play(seed, shape)
        except BaseException as exc:
            exc.add_note(f"seed {seed}")
            raise
