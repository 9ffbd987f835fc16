"""Rotations keep lengths and depend on distances alone; stretches are refused by what they lack."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_server.models.layers.rope import (
    Rope,
    axes_in_a_row,
    axes_in_turn,
    rope_frequencies,
    rope_of,
)
from model_server.models.long_positions import LONG as MARK
from sax.errors import CheckpointError
from tests.model_server.models.refusals import refused_otherwise

LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 2.0],
    "long_factor": [4.0, 8.0],
    "original_max_position_embeddings": 64,
}
LONG = {"max_position_embeddings": 256, "rope_scaling": LONGROPE}


def turned(rope: Rope, x: np.ndarray, position: int) -> np.ndarray:
    """One head of one token, f32[Q]."""
    return np.asarray(rope.at(jnp.asarray([position]))(jnp.asarray(x)[None, None]))[0, 0]


@settings(max_examples=15, deadline=None)
@given(
    first=st.integers(0, 500),
    distance=st.integers(0, 500),
    rotated=st.sampled_from([4, 6]),
    interleaved=st.booleans(),
    seed=st.integers(0, 9),
)
def test_scores_depend_on_the_distance_and_rotations_keep_lengths(
    first: int, distance: int, rotated: int, interleaved: bool, seed: int
) -> None:
    rope = Rope(
        frequencies=tuple(rope_frequencies(rotated, 100.0).tolist()), interleaved=interleaved
    )
    q, k = np.random.default_rng(seed).normal(size=(2, 6)).astype(np.float32)
    here = turned(rope, q, first + distance) @ turned(rope, k, first)
    there = turned(rope, q, distance) @ turned(rope, k, 0)
    np.testing.assert_allclose(here, there, atol=2e-4)
    np.testing.assert_allclose(np.linalg.norm(turned(rope, q, first)), np.linalg.norm(q), rtol=1e-5)
    np.testing.assert_array_equal(turned(rope, q, first)[rotated:], q[rotated:])


def test_longrope_has_a_second_list_where_the_served_context_needs_it() -> None:
    plain = rope_frequencies(4, 10000.0)
    for context, long in [(None, [4, 8]), (65, [4, 8]), (64, None)]:
        rope = rope_of(LONG, 4, context=context)
        np.testing.assert_allclose(rope.frequencies, plain / [1, 2], rtol=1e-6)
        assert rope.short_context == (64 if long else None)
        if long:
            assert rope.long_frequencies is not None
            np.testing.assert_allclose(rope.long_frequencies, plain / long, rtol=1e-6)
        # Both lists sharpen attention by how much longer the context became.
        assert rope.scale == pytest.approx((1 + np.log(4) / np.log(64)) ** 0.5)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 255), st.booleans()), min_size=6, max_size=6))
def test_marked_tokens_are_turned_by_the_long_list_and_others_by_the_short(
    tokens: list[tuple[int, bool]],
) -> None:
    rope = rope_of(LONG, 4)
    assert rope.long_frequencies is not None
    one_list = {
        False: replace(rope, long_frequencies=None),
        True: replace(rope, long_frequencies=None, frequencies=rope.long_frequencies),
    }
    marked = rope.at(jnp.asarray([position + MARK * long for position, long in tokens]))
    positions = jnp.asarray([position for position, _ in tokens])
    wanted = {long: one.at(positions) for long, one in one_list.items()}
    for index, (_, long) in enumerate(tokens):
        for found, whole in ((marked.cos, wanted[long].cos), (marked.sin, wanted[long].sin)):
            np.testing.assert_array_equal(np.asarray(found)[index], np.asarray(whole)[index])


def test_what_longrope_says_of_its_scale_counts() -> None:
    factor = LONGROPE | {"factor": 64.0}
    assert rope_of(LONG | {"rope_scaling": factor}, 4).scale == pytest.approx(2**0.5)
    own = LONGROPE | {"attention_factor": 1.19}
    assert rope_of(LONG | {"rope_scaling": own}, 4).scale == 1.19


def test_a_stretch_that_cannot_be_computed_is_refused() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"rope_type": "longrope"}, "'longrope' has no 'original_max_position_embeddings'"),
        (LONGROPE | {"long_factor": [1.0]}, "1 numbers in long_factor for the 2 rotated pairs"),
        ({"rope_type": "llama3"}, "'llama3' has no 'low_freq_factor'"),
        ({"type": "ntk"}, "rope scaling 'ntk' is not supported"),
        ({"full_attention": {"rope_type": "default"}}, "per layer type .full_attention."),
    ]
    assert (
        refused_otherwise(
            lambda given: rope_of({"max_position_embeddings": 256, "rope_scaling": given}, 4),
            cases,
            CheckpointError,
        )
        == {}
    )


def test_yarn_s_borders_are_whole_pairs_unless_the_checkpoint_says_otherwise() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    ropes = [
        rope_of({"rope_parameters": {"rope_theta": 1e4} | yarn | more}, 64)
        for more in ({}, {"truncate": True}, {"truncate": False})
    ]
    usual, whole, between = (each.frequencies for each in ropes)
    assert usual == whole != between


def test_equal_triples_rotate_like_one_position():
    rope = Rope(frequencies=(1.0, 0.5, 0.1, 0.01), axes=axes_in_turn((2, 1, 1)))
    one = rope.at(jnp.asarray([7, 3]))
    three = rope.at(jnp.asarray([[7, 3]] * 3))
    np.testing.assert_array_equal(np.asarray(one.cos), np.asarray(three.cos))


def test_each_pair_is_turned_by_the_number_of_its_axis():
    rope = Rope(frequencies=(1.0, 1.0, 1.0), axes=(0, 2, 1))
    sines = rope.at(jnp.asarray([[1], [2], [3]])).sin[0, 0]
    np.testing.assert_allclose(np.asarray(sines), np.sin([1.0, 3.0, 2.0]), atol=1e-6)


def test_axes_lie_in_a_row_or_take_turns():
    assert axes_in_a_row((2, 3, 1)) == (0, 0, 1, 1, 1, 2)
    assert axes_in_turn((4, 2, 2)) == (0, 1, 2, 0, 1, 2, 0, 0)


def test_of_a_proportional_rope_the_slow_pairs_do_not_turn() -> None:
    settings = {"rope_type": "proportional", "partial_rotary_factor": 0.5, "factor": 2.0}
    plain = rope_frequencies(8, 100.0)
    rope = rope_of({"rope_parameters": settings | {"rope_theta": 100.0}}, 8)
    np.testing.assert_allclose(rope.frequencies, [plain[0] / 2, plain[1] / 2, 0.0, 0.0], rtol=1e-6)


def test_llama_4_scout_stretches_slow_pairs_and_blends_none() -> None:
    settings = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 1.0}
    settings |= {"factor": 16.0, "original_max_position_embeddings": 64, "rope_theta": 100.0}
    plain = rope_frequencies(8, 100.0)
    rope = rope_of({"rope_parameters": settings}, 8)
    assert list(64 * plain / (2 * np.pi) > 1) == [True, True, True, False]
    np.testing.assert_allclose(rope.frequencies, [*plain[:3], plain[3] / 16], rtol=1e-6)
