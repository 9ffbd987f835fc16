"""Every row is visited by its own group once, and by nobody else's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from model_server.kernels.tpu.grouped_matmul import visits_of

planned = jax.jit(visits_of, static_argnums=(1, 2))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=4, max_size=4), st.integers(0, 20))
def test_every_row_meets_its_group_once(sizes: list[int], nobodys: int) -> None:
    rows = 16
    tiles = max(1, -(-(sum(sizes) + nobodys) // rows))
    visits = planned(jnp.asarray(sizes, jnp.int32), tiles, rows)
    count = int(visits.total[0])
    expert, tile = (np.asarray(a)[:count] for a in (visits.expert, visits.tile))
    seen: list[tuple[int, int]] = []
    for e, t in zip(expert, tile, strict=True):
        begin, end = (int(a[e]) for a in (visits.starts, visits.ends))
        seen += [(int(e), r) for r in range(t * rows, (t + 1) * rows) if begin <= r < end]
    owners = np.repeat(np.arange(4), sizes)
    assert seen == [(int(e), r) for r, e in enumerate(owners)]
    assert (np.diff(tile) >= 0).all()  # visits of one tile are neighbours


def test_a_group_without_rows_is_not_visited() -> None:
    visits = visits_of(jnp.asarray([0, 3, 0, 2], jnp.int32), 1, 16)
    assert visits.expert[: visits.total[0]].tolist() == [1, 3]


def test_there_is_one_visit_where_nobody_has_a_row() -> None:
    visits = visits_of(jnp.zeros(4, jnp.int32), 2, 16)
    assert visits.total.tolist() == [1]
    assert (visits.starts == visits.ends).all()
