"""Choices of tokens from logits, on the device, row by row, with what is reported of each.

The top tokens are taken one by one: sorts and scans took most of a step's compile time on a TPU.
`lax.cond` skips passes that no row needs.
"""

from __future__ import annotations

from inspect import signature
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from model_server.engine.sampling.drawing import RowSampling, draw, first_highest, row_keys
from model_server.kernels.cpu.rows import choose_tokens
from sax.fields.sampling import UNCHANGED

PADDING = -2  # as the target of a row, for the native kernel: nothing is chosen
TOP_LOGPROBS = 20  # the maximum in OpenAI's API
_BLOCK = 128
# The native kernel has these settings. Rows that use another are chosen for by XLA.
_SETTINGS = tuple(
    name for name in signature(choose_tokens).parameters if name in RowSampling._fields
)
_OTHERS = tuple(
    name for name in RowSampling._fields if name not in (*_SETTINGS, "seed", "position")
)


class Sampled(NamedTuple):
    """One token per row, with its log-probability under the unmodified logits."""

    tokens: jax.Array  # i32[R]
    logprobs: jax.Array  # f32[R]
    top_tokens: jax.Array  # i32[R, TOP_LOGPROBS]
    top_logprobs: jax.Array  # f32[R, TOP_LOGPROBS]
    ranks: jax.Array  # i32[R], 1: no token is likelier


def sample(
    logits: jax.Array,
    rows: RowSampling,
    edited: jax.Array | None = None,
    *,
    native: bool = False,
) -> Sampled:
    """Choose or score one token per row of f32[R, V].

    edited: the logits to choose by, after penalties and biases; None: the same. native: by the
    native CPU kernel, if no row uses a setting that it does not have.
    """
    choice = logits if edited is None else edited
    if native and not _OTHERS:
        return _natively(logits, rows, choice)
    if native:
        used = jnp.any(
            jnp.stack([getattr(rows, name) != getattr(UNCHANGED, name) for name in _OTHERS])
        )
        return lax.cond(
            used,
            lambda: _by_xla(logits, rows, choice),
            lambda: _natively(logits, rows, choice),
        )
    return _by_xla(logits, rows, choice)


def _by_xla(logits: jax.Array, rows: RowSampling, choice: jax.Array) -> Sampled:
    greedy = first_highest(choice)
    drawn = lax.cond(jnp.any(rows.temperature > 0), lambda: draw(choice, rows), lambda: greedy)
    chosen = jnp.where(rows.temperature > 0, drawn, greedy)
    tokens = jnp.where(rows.target >= 0, rows.target, chosen)
    highest = logits.max(-1, keepdims=True)
    log_total = jnp.log(jnp.exp(logits - highest).sum(-1, keepdims=True)) + highest
    own = jnp.take_along_axis(logits, tokens[:, None], axis=-1)
    top_logprobs, top_tokens, ranks = lax.cond(
        jnp.any(rows.tops > 0),
        lambda: (*_likeliest(logits, log_total), 1 + (logits > own).sum(-1, dtype=jnp.int32)),
        lambda: _nothing(logits.shape[0]),
    )
    return Sampled(tokens, (own - log_total)[:, 0], top_tokens, top_logprobs, ranks)


def _natively(logits: jax.Array, rows: RowSampling, choice: jax.Array) -> Sampled:
    drawn = jnp.any((rows.temperature > 0) & (rows.target == -1))
    # Threefry for every row, where any row is drawn at all.
    keys = lax.cond(
        drawn, lambda: row_keys(rows.seed, rows.position), lambda: jnp.zeros_like(rows.seed)
    )
    settings = {name: getattr(rows, name) for name in _SETTINGS}
    tokens, logprobs, top_tokens, top_logprobs, ranks = choose_tokens(
        logits, choice, **settings, keys=keys, most_tops=TOP_LOGPROBS
    )
    return Sampled(tokens, logprobs, top_tokens, top_logprobs, ranks)


def _likeliest(logits: jax.Array, log_total: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the top tokens, searching only the blocks with the highest maxima."""
    blocks = _blocks(logits, -jnp.inf)
    columns = lax.broadcasted_iota(jnp.int32, blocks.shape[:2], 1)
    count = min(TOP_LOGPROBS, blocks.shape[1])
    _, kept = _highest(blocks.max(-1), columns, count)
    values = jnp.take_along_axis(blocks, kept[:, :, None], axis=1)
    tokens = kept[:, :, None] * _BLOCK + lax.broadcasted_iota(jnp.int32, values.shape, 2)
    rows = logits.shape[0]
    values, tokens = _highest(values.reshape(rows, -1), tokens.reshape(rows, -1), TOP_LOGPROBS)
    return values - log_total, tokens.clip(0, logits.shape[1] - 1)


def _highest(values: jax.Array, names: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Return the highest values of each row of f32[R, N] and their names, best first.

    Ties go to the lower name. Returns f32[R, count] and i32[R, count]. No name repeats, even if no
    value is finite.
    """
    rows = values.shape[0]
    gone = jnp.iinfo(jnp.int32).max

    def take(place: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        names, best_values, best_names = state
        left = jnp.where(names < gone, values, -jnp.inf)
        best = left.max(-1)
        name = jnp.where(left == best[:, None], names, gone).min(-1)
        return (
            jnp.where(names == name[:, None], gone, names),
            best_values.at[:, place].set(best),
            best_names.at[:, place].set(name),
        )

    nothing = jnp.zeros((rows, count), values.dtype), jnp.zeros((rows, count), jnp.int32)
    _, best_values, best_names = lax.fori_loop(0, count, take, (names, *nothing))
    return best_values, best_names


def _nothing(rows: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    shape = (rows, TOP_LOGPROBS)
    zeros = jnp.zeros(shape, jnp.int32)
    return jnp.zeros(shape, jnp.float32), zeros, zeros[:, 0]


def _blocks(values: jax.Array, fill: float) -> jax.Array:
    """Reshape f32[R, V] to f32[R, ceil(V / 128), 128], padded with `fill`."""
    rows, vocab = values.shape
    padded = jnp.pad(values, ((0, 0), (0, -vocab % _BLOCK)), constant_values=fill)
    return padded.reshape(rows, -1, _BLOCK)
