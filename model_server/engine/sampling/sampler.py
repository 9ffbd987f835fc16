"""Token sampling from logits, on the device, row by row.

Exact, without a sort: the cut-offs of top-k and top-p are found by bisecting the 32 bits of the
logits' order, which costs 32 passes over the vocabulary where sorting 49152 numbers costs
milliseconds per row on a CPU. The top tokens are taken one by one: sorts and scans took most of a
step's compile time on a TPU. `lax.cond` skips passes that no row needs.

A token is drawn by a race (Gumbel-max): each token gets a random time, exponential at a rate of its
weight, and the first one wins. The random numbers are keyed by (seed, position, token), so they are
the same in any batch, and the logits' rounding, which differs between batches, changes the winner
only if two tokens arrive almost together. Inverting the cumulative distribution, in contrast, lets
rounding in any token shift the borders of all that follow.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

TOP_LOGPROBS = 20  # the maximum in OpenAI's API
_BLOCK = 128
_TINY = 1e-30
_BELOW_ONE = 1 - 2.0**-24  # the largest f32 below 1


class RowSampling(NamedTuple):
    """Sampling settings of each logit row."""

    temperature: jax.Array  # f32[R], 0: greedy
    top_k: jax.Array  # i32[R], 0: off
    top_p: jax.Array  # f32[R], 1: off
    min_p: jax.Array  # f32[R], 0: off
    typical_p: jax.Array  # f32[R], 1: off
    seed: jax.Array  # u32[R, 2], high word first
    position: jax.Array  # i32[R], of the token to choose
    target: jax.Array  # i32[R], token to score instead of choosing; -1: choose
    tops: jax.Array  # i32[R], how many top tokens to return; above 0: and the rank


class Sampled(NamedTuple):
    """One token per row, with its log-probability under the unmodified logits."""

    tokens: jax.Array  # i32[R]
    logprobs: jax.Array  # f32[R]
    top_tokens: jax.Array  # i32[R, TOP_LOGPROBS]
    top_logprobs: jax.Array  # f32[R, TOP_LOGPROBS]
    ranks: jax.Array  # i32[R], 1: no token is likelier


def sample(logits: jax.Array, rows: RowSampling, edited: jax.Array | None = None) -> Sampled:
    """Choose or score one token per row of f32[R, V].

    edited: the logits to choose by, after penalties and biases; None: the same.
    """
    choice = logits if edited is None else edited
    greedy = _first_highest(choice)
    drawn = lax.cond(jnp.any(rows.temperature > 0), lambda: _draw(choice, rows), lambda: greedy)
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


def _first_highest(values: jax.Array) -> jax.Array:
    # Two plain reductions vectorise; argmax's paired reduction does not on a CPU.
    columns = lax.broadcasted_iota(jnp.int32, values.shape, 1)
    best = values == values.max(-1, keepdims=True)
    return jnp.where(best, columns, values.shape[1]).min(-1).clip(0, values.shape[1] - 1)


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


def _draw(logits: jax.Array, rows: RowSampling) -> jax.Array:
    scaled = logits / jnp.maximum(rows.temperature, _TINY)[:, None]
    weights = jnp.exp(scaled - scaled.max(-1, keepdims=True))
    for asked, keep, limit in (
        (rows.min_p > 0, _keep_min_p, rows.min_p),
        (rows.top_k > 0, _keep_top_k, rows.top_k),
        (rows.top_p < 1, _keep_top_p, rows.top_p),
        (rows.typical_p < 1, _keep_typical, rows.typical_p),
    ):
        weights = lax.cond(jnp.any(asked), keep, lambda weights, _: weights, weights, limit)
    return _race(weights, rows.seed, rows.position)


def _keep_min_p(weights: jax.Array, min_p: jax.Array) -> jax.Array:
    """Zero all below min_p times the largest of each row."""
    return jnp.where(weights >= (min_p * weights.max(-1))[:, None], weights, 0.0)


def _keep_typical(weights: jax.Array, typical_p: jax.Array) -> jax.Array:
    """Zero all but the fewest tokens closest to the entropy that reach typical_p of the sum.

    Locally typical sampling (Meister et al., 2022). The largest weight is 1, so that logarithms of
    weights are finite wherever a weight is not zero.
    """
    shares = weights / weights.sum(-1, keepdims=True)
    surprise = jnp.where(shares > 0, -jnp.log(jnp.maximum(shares, _TINY)), 0.0)
    entropy = (shares * surprise).sum(-1, keepdims=True)
    nearness = jnp.where(shares > 0, 1 / (1 + jnp.abs(surprise - entropy)), 0.0)
    kept = _keep(nearness, shares, typical_p * shares.sum(-1))
    return jnp.where((kept > 0) | (typical_p >= 1)[:, None], weights, 0.0)


def _keep_top_k(weights: jax.Array, top_k: jax.Array) -> jax.Array:
    """Zero all but the k largest of each row; ties with the k-th are kept."""
    wanted = jnp.where(top_k > 0, jnp.minimum(top_k, weights.shape[1]), weights.shape[1])
    ones = jnp.ones_like(weights)
    return _keep(weights, ones, wanted.astype(jnp.float32))


def _keep_top_p(weights: jax.Array, top_p: jax.Array) -> jax.Array:
    """Zero all but the fewest largest of each row that together reach top_p of its sum."""
    kept = _keep(weights, weights, top_p * weights.sum(-1))
    return jnp.where((top_p < 1)[:, None], kept, weights)


def _keep(weights: jax.Array, measure: jax.Array, wanted: jax.Array) -> jax.Array:
    """Keep weights at or above the highest cut-off whose kept measure is at least `wanted`."""
    order = lax.bitcast_convert_type(weights, jnp.uint32)  # same order: weights are not negative

    def refine(bit: jax.Array, cut: jax.Array) -> jax.Array:
        higher = cut | (jnp.uint32(1) << (jnp.uint32(30) - bit.astype(jnp.uint32)))
        kept = jnp.where(order >= higher[:, None], measure, 0.0).sum(-1)
        return jnp.where(kept >= wanted, higher, cut)

    cut = lax.fori_loop(0, 31, refine, jnp.zeros(weights.shape[0], jnp.uint32))
    return jnp.where(order >= cut[:, None], weights, 0.0)


def _race(weights: jax.Array, seed: jax.Array, position: jax.Array) -> jax.Array:
    """Draw one token per row of f32[R, V] with probability proportional to its weight."""
    uniform = jnp.minimum((_bits(seed, position, weights.shape[1]) + 0.5) * 2.0**-32, _BELOW_ONE)
    return _first_highest(weights / -jnp.log1p(-uniform))


def _bits(seed: jax.Array, position: jax.Array, vocab: int) -> jax.Array:
    """Return random 32-bit numbers, rounded to f32[R, V]: a function of (seed, position, token).

    Threefry makes two words per row, and two rounds of a 32-bit finaliser mix them with each token.
    Threefry for every token took a quarter of a decode step on a CPU; this takes a thirtieth.
    """

    def words(seed: jax.Array, at: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(seed, impl="threefry2x32")
        return jax.random.key_data(jax.random.fold_in(key, at))

    key = jax.vmap(words)(seed, position)
    token = lax.broadcasted_iota(jnp.uint32, (seed.shape[0], vocab), 1)
    mixed = _mix(token * jnp.uint32(0x9E3779B9) ^ key[:, :1])
    return _mix(mixed + key[:, 1:]).astype(jnp.float32)


def _mix(word: jax.Array) -> jax.Array:
    """Mix the bits of u32 so that each input bit flips every output bit in half of all cases."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> 16)


def _blocks(values: jax.Array, fill: float) -> jax.Array:
    """Reshape f32[R, V] to f32[R, ceil(V / 128), 128], padded with `fill`."""
    rows, vocab = values.shape
    padded = jnp.pad(values, ((0, 0), (0, -vocab % _BLOCK)), constant_values=fill)
    return padded.reshape(rows, -1, _BLOCK)
