"""The scheduler decides in every random story what it decided when the story was recorded."""

from __future__ import annotations

import pytest

from tests.model_server.engine.stories import GOLDEN, STORIES, digest


def _changed(seeds: range) -> list[int]:
    recorded = GOLDEN.read_text().split()
    assert len(recorded) == STORIES
    return [seed for seed in seeds if digest(seed) != recorded[seed]]


def test_a_twentieth_of_the_stories_goes_as_recorded() -> None:
    assert _changed(range(0, STORIES, 20)) == []


@pytest.mark.nightly
def test_every_story_goes_as_recorded() -> None:
    assert _changed(range(STORIES)) == []
