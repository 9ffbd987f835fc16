"""Answers under a grammar are the same with draft tokens, of which each place has its own mask."""

from __future__ import annotations

import pytest

from tests.model_server.engine import stories


def _different(seeds: range) -> list[tuple[int, int]]:
    """Grammars, penalties, late masks, tokens chosen anew, preemptions, cancels."""
    found: list[tuple[int, int]] = []
    for seed in seeds:
        plain, drafted = (stories.answers(seed, drafts=each) for each in (False, True))
        assert plain.keys() == drafted.keys(), seed
        for id, (tokens, end) in plain.items():
            others, other_end = drafted[id]
            if "cancelled" in (end, other_end):
                count = min(len(tokens), len(others))
                same = tokens[:count] == others[:count]
            else:
                same = (tokens, end) == (others, other_end)
            if not same:
                found.append((seed, id))
    return found


def test_the_answers_of_a_twentieth_of_the_stories_are_those_without_draft_tokens() -> None:
    assert _different(range(1, stories.STORIES, 20)) == []


@pytest.mark.extended
def test_the_answers_of_other_stories_are_those_without_draft_tokens() -> None:
    assert _different(range(2, stories.STORIES, 3)) == []
