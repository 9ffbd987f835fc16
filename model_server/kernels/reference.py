"""Paged attention written for reading: the reference that every other kernel is tested against.

Gathers whole page tables and computes all scores at once; correct, not fast.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from model_server.kernels.paged import WriteThenRead, first_seen
from model_server.kernels.pages import LayerPages


def paged_attention(
    q: jax.Array,  # f32[N, C, H, Q]
    layer: LayerPages,
    tables: jax.Array,  # i32[N, S/G]
    limits: jax.Array,  # i32[N, C]: cached tokens each query sees
    *,
    scale: float,
    softcap: float | None = None,
    window: int | None = None,
    sinks: jax.Array | None = None,
    chunk: int | None = None,
    ahead: jax.Array | None = None,  # i32[N, C]: further tokens that each query sees behind itself
) -> jax.Array:
    """Attend C queries of each of N sequences to its pages. Returns f32[N, C, H, W].

    A query with limit L sees the cached tokens before L; with a window, only the last `window` of
    them; with chunks, only those of the chunk that the last of them is in. A query with limit 0 is
    padding and gives zeros. sinks: f32[H], a further score of each head, as of a token whose value
    is zero (Xiao et al. 2023, https://arxiv.org/abs/2309.17453).
    """
    n, c, h, d = q.shape
    k_pages = layer.keys.astype(jnp.float32)
    if layer.key_scales is not None:
        k_pages *= layer.key_scales[:, :, None]
    v_pages = k_pages.swapaxes(2, 3) if layer.values is None else layer.values.astype(jnp.float32)
    if layer.value_scales is not None:
        v_pages *= layer.value_scales[..., None]
    kv_heads, width = k_pages.shape[1], v_pages.shape[3]
    keys = k_pages[tables].transpose(0, 2, 3, 1, 4).reshape(n, kv_heads, d, -1)  # N K Q S
    values = v_pages[tables].transpose(0, 2, 1, 3, 4).reshape(n, kv_heads, -1, width)  # N K S W
    queries = q.reshape(n, c, kv_heads, h // kv_heads, d)
    scores = jnp.einsum("nckrd,nkds->nckrs", queries, keys) * scale
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    at = jax.lax.broadcast_to_rank(jnp.arange(scores.shape[-1]), scores.ndim)
    reach = limits if ahead is None else limits + ahead
    seen = at < reach[:, :, None, None, None]
    if window is not None or chunk is not None:
        seen &= at >= first_seen(limits, window, chunk)[:, :, None, None, None]
    scores = jnp.where(seen, scores, -1e30)
    if sinks is not None:
        of_heads = sinks.reshape(1, 1, kv_heads, -1, 1)
        scores = jnp.concatenate(
            [scores, jnp.broadcast_to(of_heads, (*scores.shape[:-1], 1))], axis=-1
        )
    weights = jax.nn.softmax(scores, axis=-1)[..., : seen.shape[-1]] * seen.astype(jnp.float32)
    return jnp.einsum("nckrs,nksd->nckrd", weights, values).reshape(n, c, h, width)


KERNEL = WriteThenRead(paged_attention)
