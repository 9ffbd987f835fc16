"""Paged attention in plain XLA: runs on every platform, shaped for the CPU.

One page of every sequence per iteration, with a running softmax (Milakov and Gimelshein 2018,
https://arxiv.org/abs/1805.02867): the copy that a gather makes stays inside the cache, and the
trip count is a value, so one program serves every context length. Gathering whole page tables
first is 3 to 8 times slower at 32 sequences, because the copy goes through memory.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

_MASKED = -1e30


def paged_attention(
    q: jax.Array,  # f32[N, C, H, Q]
    k_pages: jax.Array,  # f32[P, K, Q, G], keys transposed: both products run along rows
    v_pages: jax.Array,  # f32[P, K, G, Q]
    tables: jax.Array,  # i32[N, S/G]
    limits: jax.Array,  # i32[N, C]
    *,
    scale: float,
    softcap: float | None = None,
) -> jax.Array:
    """As `reference.paged_attention`, up to the order of the additions."""
    n, c, h, d = q.shape
    kv_heads, page_size = k_pages.shape[1], k_pages.shape[3]
    rows = c * h // kv_heads
    queries = (q * scale).reshape(n, c, kv_heads, -1, d).transpose(0, 2, 1, 3, 4)
    queries = queries.reshape(n, kv_heads, rows, d)
    row_limits = jnp.repeat(limits, h // kv_heads, axis=1)  # i32[N, rows]

    def one_page(index, carry):
        highest, total, output = carry
        pages = lax.dynamic_index_in_dim(tables, index, axis=1, keepdims=False)
        keys = k_pages.at[pages].get(mode="promise_in_bounds")
        values = v_pages.at[pages].get(mode="promise_in_bounds")
        scores = jnp.einsum("nkrd,nkdg->nkrg", queries, keys, preferred_element_type=jnp.float32)
        if softcap is not None:
            scores = softcap * jnp.tanh(scores / softcap)
        seen = index * page_size + jnp.arange(page_size) < row_limits[:, :, None]
        scores = jnp.where(seen[:, None], scores, _MASKED)
        new_highest = jnp.maximum(highest, scores.max(-1))
        weights = jnp.exp(scores - new_highest[..., None])
        decay = jnp.exp(highest - new_highest)
        output = output * decay[..., None] + jnp.einsum(
            "nkrg,nkgd->nkrd", weights, values, preferred_element_type=jnp.float32
        )
        return new_highest, total * decay + weights.sum(-1), output

    zeros = jnp.zeros((n, kv_heads, rows), jnp.float32)
    start = (zeros + _MASKED, zeros, jnp.zeros((n, kv_heads, rows, d), jnp.float32))
    trips = (limits.max() + page_size - 1) // page_size
    _, total, output = lax.fori_loop(0, trips, one_page, start)
    # A padding row saw nothing but masked scores: its weights are exp(0), so zero it by its limit.
    output = jnp.where(
        (row_limits > 0)[:, None, :, None], output / jnp.maximum(total, 1e-30)[..., None], 0.0
    )
    output = output.reshape(n, kv_heads, c, h // kv_heads, d).transpose(0, 2, 1, 3, 4)
    return output.reshape(n, c, h, d)
