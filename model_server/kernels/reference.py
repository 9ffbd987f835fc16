"""Paged attention written for reading: the truth that every other kernel is compared with.

Gathers whole page tables and forms all scores at once; correct, not fast.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def paged_attention(
    q: jax.Array,  # f32[N, C, H, Q]
    k_pages: jax.Array,  # f32[P, K, Q, G], keys transposed
    v_pages: jax.Array,  # f32[P, K, G, Q]
    tables: jax.Array,  # i32[N, S/G]
    limits: jax.Array,  # i32[N, C]: how many cached tokens each query sees
    *,
    scale: float,
    softcap: float | None = None,
) -> jax.Array:
    """Attend C queries of each of N sequences to its pages. Returns f32[N, C, H, Q].

    A query with limit 0 is padding and gives zeros.
    """
    n, c, h, d = q.shape
    kv_heads = k_pages.shape[1]
    keys = k_pages[tables].transpose(0, 2, 3, 1, 4).reshape(n, kv_heads, d, -1)  # N K Q S
    values = v_pages[tables].transpose(0, 2, 1, 3, 4).reshape(n, kv_heads, -1, d)  # N K S Q
    queries = q.reshape(n, c, kv_heads, h // kv_heads, d)
    scores = jnp.einsum("nckrd,nkds->nckrs", queries, keys) * scale
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    seen = jnp.arange(scores.shape[-1]) < limits[:, :, None, None, None]
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1) * seen
    return jnp.einsum("nckrs,nksd->nckrd", weights, values).reshape(n, c, h, d)
