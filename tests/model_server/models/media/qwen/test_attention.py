"""Attention in windows sees what a mask over all patches lets through."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model_server.models.media.qwen.attention import in_windows

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
