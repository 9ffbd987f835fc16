"""Sums, softmaxes and norms of rows, and functions of numbers, whose bits on CPUs depend on the row
alone.

XLA:CPU adds the numbers of a row in an order that depends on how many rows there are, and computes
behind the last whole vector otherwise than within one; a token's norm and its route would depend on
its batch. The native kernels compute each row alike. Without them sums are products with ones,
whose order XLA:CPU did not change in rows of 16 numbers and more, from two rows on: one row by
itself was added otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from model_server.kernels.cpu import native
from model_server.kernels.cpu.rows import balance, curve, mix

_PORTABLE: ContextVar[bool] = ContextVar("portable", default=False)


@contextmanager
def portable() -> Iterator[None]:
    """Trace programs that run where there are no native kernels."""
    mark = _PORTABLE.set(True)
    try:
        yield
    finally:
        _PORTABLE.reset(mark)


def row_sum(x: jax.Array) -> jax.Array:
    """Return f32[..., 1], the sum of each row of f32[..., D]; D is at least 1."""
    return _computed("sum", x, 0.0)


def row_mean(x: jax.Array) -> jax.Array:
    """Return f32[..., 1], the mean of each row of f32[..., D]."""
    return rounded(row_sum(x) / x.shape[-1])  # XLA multiplies by the inverse of a constant


def row_softmax(x: jax.Array) -> jax.Array:
    """Return f32[..., D], the softmax of each row; -inf gets nothing."""
    return _computed("softmax", x, 0.0)


def weighted_sum(scores: jax.Array, values: jax.Array, axis: int) -> jax.Array:
    """Return the sum of values along an axis, each number weighted by a softmax of its scores."""
    scores, values = (jnp.moveaxis(each, axis, -1) for each in (scores, values))
    return row_sum(row_softmax(scores) * values)[..., 0]


def standardized(x: jax.Array, epsilon: float) -> jax.Array:
    """Return (x - mean) / sqrt(variance + epsilon) of each row: f32[..., D]."""
    return _computed("standardized", x, epsilon)


def unit(x: jax.Array, epsilon: float) -> jax.Array:
    """Return x / sqrt(mean square + epsilon) of each row: f32[..., D]."""
    return _computed("unit", x, epsilon)


def logistic(x: jax.Array) -> jax.Array:
    """Return f32[..., D], 1 / (1 + exp(-x))."""
    return _computed("logistic", x, 0.0)


def silu(x: jax.Array) -> jax.Array:
    """Return f32[..., D], x / (1 + exp(-x))."""
    return x * logistic(x)


def softplus(x: jax.Array) -> jax.Array:
    """Return f32[..., D], log(1 + exp(x))."""
    return _computed("softplus", x, 0.0)


def rounded(product: jax.Array) -> jax.Array:
    """Return a product f32[...] that is added or subtracted next: rounded first, on CPUs too.

    XLA:CPU fuses a product and a sum into one instruction, without rounding between, or does not:
    where few numbers lie in a row it computes several rows at once in some programs, and what
    arranges them lies between. A maximum cannot be left out, as a barrier is.
    """
    return lax.platform_dependent(product, cpu=_no_less, default=lambda x: x)


def _no_less(x: jax.Array) -> jax.Array:
    """Return f32[...] with the lowest finite number for -inf."""
    return jnp.maximum(x, jnp.finfo(x.dtype).min)


def fading(log_decay: jax.Array) -> jax.Array:
    """Return f32[H], -exp(x), computed apart from what it multiplies: once, in one way."""
    return lax.optimization_barrier(-jnp.exp(log_decay))


@jax.custom_jvp
def mixed_streams(
    x: jax.Array,  # f32[T, N, D]
    weights: jax.Array | None,  # f32[T, N, M]; None: M is N, and streams are as they are
    adding: jax.Array | None = None,  # f32[T, M]
    made: jax.Array | None = None,  # f32[T, D]; None: nothing is added
) -> jax.Array:
    """Return f32[T, M, D]: streams weighted and added up, and `made` added to each result."""
    on_cpu = mix if _is_native(x) else _mixed
    return lax.platform_dependent(x, weights, adding, made, cpu=on_cpu, default=_mixed)


def _mixed(
    x: jax.Array, weights: jax.Array | None, adding: jax.Array | None, made: jax.Array | None
) -> jax.Array:
    if weights is not None:
        # What is added was rounded before, on TPUs and GPUs by the barrier.
        weighted = lax.optimization_barrier(rounded(weights[..., None] * x[:, :, None]))
        x = reduce(jnp.add, (weighted[:, stream] for stream in range(x.shape[1])))
    if adding is None or made is None:
        return x
    return x + rounded(adding[..., None] * made[:, None])


@mixed_streams.defjvp
def _(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    _, change = jax.jvp(_mixed, primals, tangents)
    return mixed_streams(*primals), change


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def balanced(x: jax.Array, least: float, rounds: int) -> jax.Array:
    """Return matrices f32[T, N, N] of positive numbers with rows and columns that add up to one.

    By the algorithm of Sinkhorn and Knopp, in so many rounds. least: added to sums.
    """
    plain = partial(_balanced, least=least, rounds=rounds)
    native = partial(balance, least=least, rounds=rounds)
    on_cpu = native if _is_native(x) else plain
    return lax.platform_dependent(x, cpu=on_cpu, default=plain)


def _balanced(x: jax.Array, least: float, rounds: int) -> jax.Array:
    def divided(found: jax.Array, axis: int) -> jax.Array:
        return found / (found.sum(axis, keepdims=True) + least)

    def one_round(_: int, found: jax.Array) -> jax.Array:
        return divided(divided(found, 2), 1)

    return lax.fori_loop(1, rounds, one_round, divided(x, 1))


@balanced.defjvp
def _(least: float, rounds: int, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    _, change = jax.jvp(partial(_balanced, least=least, rounds=rounds), primals, tangents)
    return balanced(*primals, least, rounds), change


def _is_native(x: jax.Array) -> bool:
    """True if the native kernels compute rows."""
    # XLA would gather what is divided among devices before it calls a kernel. What a weight has had
    # a part in has a mesh, if only of one device.
    mesh = jax.typeof(x).sharding.mesh
    return (
        (mesh.empty or mesh.size == 1)
        and native.available()
        and x.dtype == jnp.float32
        and not _PORTABLE.get()
    )


@partial(jax.custom_jvp, nondiff_argnums=(0, 2))
def _computed(name: str, x: jax.Array, epsilon: float) -> jax.Array:
    plain = partial(_BY_XLA[name], epsilon=epsilon)
    on_cpu = partial(_by_product, epsilon=epsilon) if name == "sum" else plain
    if _is_native(x):
        on_cpu = partial(curve, name, epsilon=epsilon)
    return lax.platform_dependent(x, cpu=on_cpu, default=plain)


@_computed.defjvp
def _(
    name: str, epsilon: float, primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    _, change = jax.jvp(partial(_BY_XLA[name], epsilon=epsilon), primals, tangents)
    return _computed(name, *primals, epsilon), change


def _sum(x: jax.Array, epsilon: float = 0.0) -> jax.Array:
    return x.sum(-1, keepdims=True)


def _by_product(x: jax.Array, epsilon: float = 0.0) -> jax.Array:
    ones = jnp.ones((x.shape[-1], 2), x.dtype)
    return jnp.matmul(x, ones, precision="highest")[..., :1]


def _softmax(x: jax.Array, epsilon: float) -> jax.Array:
    # What is summed and what is divided are one array: XLA would compute the exponential twice, in
    # loops of its own, with other bits.
    weights = lax.optimization_barrier(jnp.exp(x - x.max(-1, keepdims=True)))
    return weights / row_sum(weights)


def _standardized(x: jax.Array, epsilon: float) -> jax.Array:
    return _unit(x - row_mean(x), epsilon)


def _unit(x: jax.Array, epsilon: float) -> jax.Array:
    return x * lax.rsqrt(row_mean(jnp.square(x)) + epsilon)


def _logistic(x: jax.Array, epsilon: float) -> jax.Array:
    return jax.nn.sigmoid(x)


def _softplus(x: jax.Array, epsilon: float) -> jax.Array:
    return jax.nn.softplus(x)


_BY_XLA: Mapping[str, Callable[..., jax.Array]] = {
    "sum": _sum,
    "softmax": _softmax,
    "logistic": _logistic,
    "softplus": _softplus,
    "standardized": _standardized,
    "unit": _unit,
}
