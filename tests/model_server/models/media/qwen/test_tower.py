"""Learned positions are stretched over an image, and patches turn by row and column."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model_server.models.media.qwen.tower import axial_rotation, in_windows, interpolated


def test_the_corners_of_the_square_are_those_of_the_image() -> None:
    table = jnp.arange(9, dtype=jnp.float32)[:, None]  # 3 x 3
    corners = [[0, 0, 5, 4], [0, 3, 5, 4], [4, 0, 5, 4], [4, 3, 5, 4], [2, 0, 5, 4]]
    found = interpolated(table, 3, jnp.asarray(corners, jnp.int32))
    np.testing.assert_allclose(np.asarray(found)[:, 0], [0, 2, 6, 8, 3], atol=1e-5)


def test_between_learned_positions_shares_are_by_distance() -> None:
    table = jnp.asarray([[0.0], [1.0], [10.0], [11.0]])  # 2 x 2
    places = jnp.asarray([[1, 0, 5, 2], [0, 1, 1, 3]], jnp.int32)
    found = interpolated(table, 2, places)
    np.testing.assert_allclose(np.asarray(found)[:, 0], [2.5, 0.5], atol=1e-5)


def test_half_of_the_pairs_turn_by_rows_and_half_by_columns() -> None:
    rotation = axial_rotation(jnp.asarray([[3, 0], [0, 3]], jnp.int32), 8, 100.0)
    sines = np.asarray(rotation.sin)[:, 0]
    np.testing.assert_allclose(sines[0], [np.sin(3), np.sin(0.3), 0, 0], atol=1e-6)
    np.testing.assert_allclose(sines[1], [0, 0, np.sin(3), np.sin(0.3)], atol=1e-6)


GROUPS = [
    ([0] * 4 + [1] * 2 + [2] * 4 + [3] * 1 + [4] * 3 + [-1] * 2, 4),
    ([0] * 5 + [1] * 5 + [2] * 1, 5),
    ([0] * 2, 9),  # one window, larger than the image
]


@pytest.mark.parametrize(
    ("groups", "window"),
    [GROUPS[0], *(pytest.param(*each, marks=pytest.mark.nightly) for each in GROUPS[1:])],
)
def test_a_patch_sees_its_own_window_alone(groups: list[int], window: int) -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (jax.random.normal(key, (2, len(groups), 3, 4)) for key in keys)
    among = jnp.asarray([groups] * 2)
    found = in_windows(q, k, v, among, window)
    scores = np.einsum("bthq,bshq->bhts", q, k) / 2.0
    seen = np.equal.outer(groups, groups)
    weights = np.where(seen, np.exp(scores), 0.0)
    wanted = np.einsum("bhts,bshq->bthq", weights / weights.sum(-1, keepdims=True), v)
    there = np.asarray(groups) >= 0
    np.testing.assert_allclose(np.asarray(found)[:, there], wanted[:, there], atol=1e-5)
