"""The choice of tokens from logits by the native kernel: all passes over a row in cache."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def choose_tokens(
    logits: jax.Array,  # f32[R, V]: to report by
    edited: jax.Array,  # f32[R, V]: to choose by
    *,
    temperature: jax.Array,  # f32[R], as the others are of each row
    top_k: jax.Array,
    top_p: jax.Array,
    min_p: jax.Array,
    typical_p: jax.Array,
    keys: jax.Array,  # u32[R, 2]
    target: jax.Array,
    tops: jax.Array,
    most_tops: int,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return tokens i32[R], their logprobs f32[R], top tokens i32[R, most_tops] and their logprobs
    f32[R, most_tops], and ranks i32[R].
    """
    rows = logits.shape[0]

    def made(dtype: jnp.dtype, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, *shape), dtype)

    whole, real = jnp.dtype("int32"), jnp.dtype("float32")
    call = jax.ffi.ffi_call(
        "sax_cpu_choose_tokens",
        (made(whole), made(real), made(whole, most_tops), made(real, most_tops), made(whole)),
    )
    token, logprob, top, top_logprobs, rank = call(
        logits, edited, temperature, top_k, top_p, min_p, typical_p, keys, target, tops
    )
    return token, logprob, top, top_logprobs, rank
