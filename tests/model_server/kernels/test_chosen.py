"""Queries attend to the tokens that they score highest, and to no others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

from model_server.kernels import xla
from model_server.kernels.chosen import Choosing, attend_to_chosen
from model_server.kernels.gpu.attention import GpuAttention
from model_server.kernels.paged import KernelRefusal
from model_server.kernels.pages import CacheShape, allocate
from model_server.kernels.whole import WholeInputs, no_pages, whole_batch
from tests.model_server.tiny import PAGE, one_prompt

TOKENS, HEADS, DIM, INDEXERS, INDEX = 21, 2, 6, 5, 4
SCALE = 0.4
attend = jax.jit(attend_to_chosen, static_argnames=("most", "scale"))


def vectors() -> tuple[np.ndarray, ...]:
    """q, k with keys for choosing behind, and the vectors that choose; of an idle row, too."""
    rng = np.random.default_rng(0)
    shapes = ((HEADS, DIM), (1, DIM + INDEX), (INDEXERS, INDEX), (INDEXERS,))
    return tuple(rng.standard_normal((1 + TOKENS, *s)).astype(np.float32) for s in shapes)


def wanted(most: int) -> np.ndarray:
    """f32[S, H, DIM], one query after the other."""
    q, k, by, weights = (each[1:] for each in vectors())
    k = k[:, 0]
    made = np.zeros((TOKENS, HEADS, DIM))
    for at in range(TOKENS):
        seen = k[: at + 1]
        products = np.maximum(by[at] @ seen[:, DIM:].T, 0)
        highest = np.argsort(-(weights[at] @ products))[:most]
        scores = np.exp(SCALE * q[at] @ seen[highest, :DIM].T)
        made[at] = scores / scores.sum(-1, keepdims=True) @ seen[highest, :DIM]
    return made


def attended(most: int, dtype: str = "float32") -> np.ndarray:
    cache = CacheShape(layers=1, kv_heads=1, key_dim=DIM + INDEX, value_dim=0, chosen=True)
    (layer,) = allocate(cache, -(-TOKENS // PAGE), PAGE, jnp.dtype(dtype))
    q, k, by, weights = map(jnp.asarray, vectors())
    batch = one_prompt(TOKENS, xla.KERNEL)
    made, _, _ = attend(batch, layer, q, k, Choosing(by, weights), most=most, scale=SCALE)
    return np.asarray(made)[1:]


@pytest.mark.parametrize("most", [1, 5, TOKENS, 64])
def test_as_many_tokens_as_are_asked_for_are_attended_to(most: int) -> None:
    np.testing.assert_allclose(attended(most), wanted(most), atol=1e-5)


def in_pools(size: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """What attention to chosen pools gives, and one query after the other: f32[S, H, DIM]."""
    q, k, by, weights = vectors()
    rng = np.random.default_rng(size)
    counts = rng.standard_normal((1 + TOKENS, 1, INDEX)).astype(np.float32)
    places = rng.standard_normal((size, INDEX)).astype(np.float32)
    wide = np.concatenate([k, counts], axis=-1)
    cache = CacheShape(layers=1, kv_heads=1, key_dim=wide.shape[2], value_dim=0, chosen=True)
    (layer,) = allocate(cache, -(-TOKENS // PAGE), PAGE, jnp.dtype("float32"))
    batch, choosing = one_prompt(TOKENS, xla.KERNEL), Choosing(*map(jnp.asarray, (by, weights)))
    made, _, _ = attend(batch, layer, q, wide, choosing, most=most, scale=SCALE, pools=places)
    k, counts = k[1:, 0], np.exp(counts[1:, 0])
    wanted = np.zeros((TOKENS, HEADS, DIM))
    for at in range(TOKENS):
        whole = (at + 1) // size
        shares = counts[: whole * size].reshape(whole, size, INDEX) * np.exp(places)
        means = (shares * k[: whole * size, DIM:].reshape(whole, size, INDEX)).sum(1)
        products = np.maximum(by[1 + at] @ (means / shares.sum(1)).T, 0)
        best = np.argsort(-(weights[1 + at] @ products))[: most // size]
        seen = [pool * size + place for pool in best for place in range(size)]
        seen += range(whole * size, at + 1)
        scores = np.exp(SCALE * q[1 + at] @ k[seen, :DIM].T)
        wanted[at] = scores / scores.sum(-1, keepdims=True) @ k[seen, :DIM]
    return np.asarray(made)[1:], wanted


@pytest.mark.parametrize("size", [1, 3, 2 * PAGE])
def test_pools_are_chosen_whole_and_tokens_behind_the_last_whole_one_are_seen(size: int) -> None:
    made, wanted = in_pools(size, most=size)
    np.testing.assert_allclose(made, wanted, atol=1e-5)


def test_a_choice_is_passed_on_to_a_layer_without_keys_for_choosing() -> None:
    shape = CacheShape(layers=1, kv_heads=1, key_dim=DIM, value_dim=0, chosen=True)
    (narrow,) = allocate(shape, -(-TOKENS // PAGE), PAGE, jnp.dtype("float32"))
    (layer,) = allocate(
        replace(shape, key_dim=DIM + INDEX), -(-TOKENS // PAGE), PAGE, jnp.dtype("float32")
    )
    q, k, by, weights = map(jnp.asarray, vectors())
    batch, how = one_prompt(TOKENS, xla.KERNEL), {"most": 5, "scale": SCALE}
    _, _, chosen = attend(batch, layer, q, k, Choosing(by, weights), **how)
    made, _, again = attend_to_chosen(batch, narrow, q, k[..., :DIM], chosen, **how)
    np.testing.assert_allclose(np.asarray(made)[1:], wanted(5), atol=1e-5)
    assert again.blocks is chosen.blocks


def test_small_pages_choose_nearly_alike() -> None:
    differences = np.abs(attended(TOKENS - 1, "int8") - wanted(TOKENS - 1))
    assert differences.mean() < 0.02


@pytest.mark.parametrize("most", [5, 64])
def test_whole_inputs_choose_alike_without_pages(most: int) -> None:
    """Two inputs: the first is shorter, and padded."""
    q, k, by, weights = (
        jnp.concatenate([jnp.asarray(each[1:]), jnp.asarray(each[1:])]) for each in vectors()
    )
    batch = whole_batch(jnp.array([9, TOKENS]), TOKENS)
    made, _, _ = attend(batch, no_pages(), q, k, Choosing(by, weights), most=most, scale=SCALE)
    found = np.asarray(made).reshape(2, TOKENS, HEADS, -1)
    np.testing.assert_allclose(found[1], wanted(most), atol=1e-5)
    np.testing.assert_allclose(found[0, :9], wanted(most)[:9], atol=1e-5)


@pytest.mark.parametrize(
    "other", [GpuAttention(AbstractMesh((1,), ("model",)), None, None), WholeInputs(causal=False)]
)
def test_other_pages_and_tokens_that_come_later_are_refused(other: Any) -> None:
    q, k, by, weights = map(jnp.asarray, vectors())
    batch = replace(one_prompt(TOKENS, xla.KERNEL), kernel=other)
    with pytest.raises(KernelRefusal, match="plain XLA or of TPUs only"):
        attend_to_chosen(batch, no_pages(), q, k, Choosing(by, weights), most=4, scale=SCALE)
