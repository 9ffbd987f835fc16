"""Percentiles, beside NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sax.cli.bench.report import SHOWN, distribution, percentile

TIMES = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)


@given(TIMES, st.floats(0, 100))
def test_a_percentile_is_that_of_numpy(values: list[float], percent: float) -> None:
    ours = percentile(sorted(values), percent)
    assert ours == pytest.approx(float(np.percentile(values, percent)), rel=1e-6, abs=1e-6)


@given(TIMES)
def test_percentiles_rise_from_the_least_to_the_most(values: list[float]) -> None:
    found = distribution(values)
    assert found is not None
    rising = [min(values), *(found.percentiles[each] for each in SHOWN), found.most]
    assert all(low <= high * (1 + 1e-9) for low, high in zip(rising, rising[1:], strict=False))
    assert found.count == len(values)
    assert found.mean == pytest.approx(float(np.mean(values)))


def test_no_values_have_no_percentile() -> None:
    assert distribution([]) is None
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
