"""Reading the compiler's refusals."""

from __future__ import annotations

import pytest

from model_server.plan.compiled import read_refusal


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("RESOURCE_EXHAUSTED: Ran out. Used 17.25G of 15.75G hbm. Exceeded", (17.25, 15.75)),
        (
            "RESOURCE_EXHAUSTED: the total memory required for HLO temporaries (2.00T) exceeds "
            "available HBM (15.75G).",
            (2048, 15.75),
        ),
    ],
)
def test_both_ways_in_which_the_compiler_refuses_are_read(
    text: str, expected: tuple[float, float]
) -> None:
    assert read_refusal(text) == tuple(int(size * 2**30) for size in expected)


def test_another_refusal_is_not_taken_for_one_of_memory() -> None:
    assert read_refusal("INVALID_ARGUMENT: Used 1G of 2G hbm") is None
    assert read_refusal("RESOURCE_EXHAUSTED: of something else") is None
