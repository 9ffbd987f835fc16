"""Operations on rows between products, by the native kernels: norms, gates, heads, the choice of
tokens, and the factors of adapters.

XLA makes many small loops of them, most of which run on one thread; and it computes the sines of a
step again in every layer, however it is told not to. Rows that are not live get zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_NONE: Any = np.zeros(0, np.float32)
GATES = {"silu": 0, "gelu_tanh": 1, "relu": 2, "gelu": 3, "quick_gelu": 4}
CURVES = ("sum", "softmax", "logistic", "softplus", "standardized", "unit")


class HeadNorm(NamedTuple):
    """x / rms(x) * (scale + more) of each head, for queries and keys."""

    query_scale: jax.Array  # f32[D]
    key_scale: jax.Array  # f32[D]
    epsilon: float
    more: float


class HeadRotation(NamedTuple):
    """Rotation of the first R numbers of each head by its row's position."""

    cos: jax.Array  # f32[T, 1, R / 2]
    sin: jax.Array  # f32[T, 1, R / 2]
    interleaved: bool


def rms_norm(
    x: jax.Array,  # f32[T, D]
    added: jax.Array | None,  # f32[T, D]
    live: jax.Array,  # i32[T]: the rows to compute, then -1
    scale: jax.Array,  # f32[D]
    *,
    epsilon: float,
    more: float = 0.0,
) -> tuple[jax.Array, jax.Array]:
    """Return s = x + added, and s / rms(s) * (scale + more): f32[T, D] each."""
    made = _made(*x.shape)
    call = jax.ffi.ffi_call("sax_cpu_rms_norm", (_made(0) if added is None else made, made))
    given = _NONE if added is None else added
    sums, normed = call(x, given, live, scale, epsilon=np.float32(epsilon), more=np.float32(more))
    return (x if added is None else sums), normed


def layer_norm(
    x: jax.Array,  # f32[T, D]
    added: jax.Array | None,  # f32[T, D]
    live: jax.Array,  # i32[T]: the rows to compute, then -1
    scale: jax.Array,  # f32[D]
    bias: jax.Array | None,  # f32[D]
    *,
    epsilon: float,
) -> tuple[jax.Array, jax.Array]:
    """Return s = x + added, and (s - mean(s)) / deviation(s) * scale + bias: f32[T, D] each."""
    made = _made(*x.shape)
    call = jax.ffi.ffi_call("sax_cpu_layer_norm", (_made(0) if added is None else made, made))
    given = (x, _NONE if added is None else added, live, scale, _NONE if bias is None else bias)
    sums, normed = call(*given, epsilon=np.float32(epsilon))
    return (x if added is None else sums), normed


def activated(x: jax.Array, bias: jax.Array | None, live: jax.Array, gate: str) -> jax.Array:
    """Return gate(x + bias): f32[T, F].

    bias: f32[F]. live: i32[T], the rows to compute, then -1. gate: a name in GATES.
    """
    call = jax.ffi.ffi_call("sax_cpu_activated", _made(*x.shape))
    return call(x, _NONE if bias is None else bias, live, gate=np.int32(GATES[gate]))


def gated(both: jax.Array, live: jax.Array, gate: str) -> jax.Array:
    """Return gate(x) * y: f32[T, F].

    both: f32[T, 2 F], x and y side by side. live: i32[T], the rows to compute, then -1.
    gate: a name in GATES.
    """
    rows, width = both.shape
    call = jax.ffi.ffi_call("sax_cpu_gated", _made(rows, width // 2))
    return call(both, live, gate=np.int32(GATES[gate]))


def heads(
    joined: jax.Array,  # f32[T, (H + 2 K) D]: queries, keys and values
    live: jax.Array,  # i32[T]: the rows to compute, then -1
    size: int,  # D
    kv_heads: int,  # K
    norm: HeadNorm | None,
    rotation: HeadRotation | None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return queries f32[T, H, D], keys and values f32[T, K, D]; norm and rotate the first two."""
    rows, width = joined.shape
    made = [_made(rows, count, size) for count in (width // size - 2 * kv_heads, *[kv_heads] * 2)]
    call = jax.ffi.ffi_call("sax_cpu_heads", made)
    query_scale, key_scale, epsilon, more = norm or HeadNorm(_NONE, _NONE, 0.0, 0.0)
    cos, sin, interleaved = rotation or HeadRotation(_NONE, _NONE, False)
    queries, keys, values = call(
        joined, query_scale, key_scale, cos, sin, live,
        epsilon=np.float32(epsilon), more=np.float32(more), interleaved=np.int32(interleaved),
    )  # fmt: skip
    return queries, keys, values


def mix(
    x: jax.Array,  # f32[T, N, D]
    weights: jax.Array | None,  # f32[T, N, M]; None: M is N, and streams are as they are
    adding: jax.Array | None,  # f32[T, M]
    made: jax.Array | None,  # f32[T, D]; None: nothing is added
) -> jax.Array:
    """Return f32[T, M, D]: sums of streams, each weighted, and what was made, weighted, too."""
    rows, streams, size = x.shape
    outs = streams if weights is None else weights.shape[2]
    call = jax.ffi.ffi_call("sax_cpu_mix", _made(rows, outs, size))
    given = (_NONE if each is None else each for each in (weights, adding, made))
    return call(x, *given)


def balance(x: jax.Array, *, least: float, rounds: int) -> jax.Array:
    """Return f32[T, N, N], as `row_sums.balanced`."""
    call = jax.ffi.ffi_call("sax_cpu_balance", _made(*x.shape))
    return call(x, least=np.float32(least), rounds=np.int32(rounds))


def curve(name: str, x: jax.Array, epsilon: float = 0.0) -> jax.Array:
    """Return the sum f32[..., 1] of each row of f32[..., D], or its softmax, or another function.

    name: in CURVES; `row_sums` says what they are.
    """
    shape = (*x.shape[:-1], 1) if name == "sum" else x.shape
    call = jax.ffi.ffi_call("sax_cpu_curve", _made(*shape), vmap_method="broadcast_all")
    return call(x, kind=np.int32(CURVES.index(name)), epsilon=np.float32(epsilon))


def _made(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


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


def add_low_rank(
    x: jax.Array,  # f32[T, K]
    adapters: jax.Array,  # i32[T]: place of each row's adapter, from 1 on; 0: none
    down: jax.Array,  # bf16[places, C * r, K]
    ups: Sequence[jax.Array],  # C times bf16[places, r, N]
    made: Sequence[jax.Array],  # C times f32[T, N], or one of all side by side: without adapters
) -> list[jax.Array]:
    """Add to each projection; reads only the factors of adapters that are in the batch."""
    results = [jax.ShapeDtypeStruct(each.shape, jnp.float32) for each in made]
    first = 3 + len(ups)
    call = jax.ffi.ffi_call(
        "sax_cpu_low_rank",
        results,
        input_output_aliases={first + index: index for index in range(len(results))},
    )
    return list(call(x.astype(jnp.float32), adapters, down, *ups, *made))
