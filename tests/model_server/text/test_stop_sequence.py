"""A stop sequence is found where the tokens end with it, at the same work for every token."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from model_server.text.stop_sequence import ANY, StopSequence

TOKENS = st.lists(st.integers(1, 3), max_size=12)
SEQUENCES = st.lists(st.integers(0, 3), min_size=1, max_size=5)


def ends_with(tokens: Sequence[int], sequence: Sequence[int]) -> bool:
    end = tokens[-len(sequence) :]
    return len(end) == len(sequence) and all(
        wanted in (ANY, found) for wanted, found in zip(sequence, end, strict=True)
    )


@given(SEQUENCES, TOKENS, TOKENS)
def test_it_is_found_wherever_the_tokens_end_with_it(
    sequence: list[int], prompt: list[int], answer: list[int]
) -> None:
    matcher = StopSequence(sequence)
    matcher.follow(prompt)
    found = [matcher.push(token) for token in answer]
    tokens = [*prompt, *answer]
    ends = range(len(prompt) + 1, len(tokens) + 1)
    assert found == [ends_with(tokens[:end], sequence) for end in ends]


def test_a_sequence_may_begin_again_inside_itself() -> None:
    matcher = StopSequence([1, 2, 1, 2, 3])
    assert [matcher.push(token) for token in [1, 2, 1, 2, 1, 2, 3]] == [False] * 6 + [True]
