"""Answers under a grammar are the same with draft tokens, of which each place has its own mask."""

from __future__ import annotations

from tests.model_server.engine import stories


def test_the_answers_of_every_story_are_those_without_draft_tokens() -> None:
    """Grammars, penalties, late masks, tokens chosen anew, preemptions, cancels."""
    for seed in range(1, stories.STORIES, 3):
        plain, drafted = (stories.answers(seed, drafts=each) for each in (False, True))
        assert plain.keys() == drafted.keys(), seed
        for id, (tokens, end) in plain.items():
            others, other_end = drafted[id]
            if "cancelled" in (end, other_end):
                count = min(len(tokens), len(others))
                assert tokens[:count] == others[:count], (seed, id)
            else:
                assert (tokens, end) == (others, other_end), (seed, id)
