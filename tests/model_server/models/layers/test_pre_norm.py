"""Two halves side by side, with one norm or two."""

from __future__ import annotations

from typing import Any

import pytest
from flax import nnx

from model_server.models.layers.pre_norm import ParallelLayer


class Times(nnx.Module):
    """Stands for a norm or a feed-forward that multiplies."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: Any) -> Any:
        return x * self.factor


class Attends(nnx.Module):
    """Stands for an attention that multiplies by 10 and counts in its pages."""

    def __call__(self, x: Any, rotation: Any, pages: Any, batch: Any) -> tuple[Any, Any]:
        return x * 10, pages + 1


@pytest.mark.parametrize(
    ("second", "wanted"),
    [(None, 1 + 2 * 10 + 2 * 100), (Times(3), 1 + 2 * 10 + 3 * 100)],
    ids=["one norm", "two norms"],
)
def test_both_halves_see_what_came_in(second: nnx.Module | None, wanted: float) -> None:
    layer = ParallelLayer(Times(2), Attends(), second, Times(100))
    assert layer(1.0, None, 7, None) == (wanted, 8)
