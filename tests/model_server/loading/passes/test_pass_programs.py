"""Buckets of passes: every input has one, and few are half empty."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from model_server.loading.passes.pass_programs import lengths_up_to, rows_up_to, split


@given(st.integers(1, 3000), st.integers(1, 100))
def test_every_input_has_a_bucket(context: int, batch: int) -> None:
    lengths = lengths_up_to(context)
    assert lengths[-1] == context
    assert list(lengths) == sorted(set(lengths))
    for length in lengths:
        rows = rows_up_to(batch, length)
        assert rows[0] == 1
        assert list(rows) == sorted(set(rows))
        assert rows[-1] <= batch
        assert rows[-1] * length <= max(4096, length)


@given(st.integers(0, 200), st.integers(1, 64))
def test_a_split_holds_every_input_and_wastes_less_than_half(count: int, batch: int) -> None:
    sizes = rows_up_to(batch, 32)
    chosen = split(count, sizes)
    assert set(chosen) <= set(sizes)
    assert sum(chosen) >= count
    for i, size in enumerate(chosen):
        left = count - sum(chosen[:i])
        assert size < 2 * left
