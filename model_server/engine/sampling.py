"""The choice of tokens from logits, on the device, row by row, with what is reported of each.

The top tokens are taken one by one: sorts and scans took most of a step's compile time on a TPU.
Draws at a temperature come first here, after the cut-offs that each row asks for. They are exact,
without a sort: the cut-offs of top-k, top-p and typical-p are found by bisecting the 32 bits of the
weights' order, which costs 32 passes over the vocabulary where sorting 49152 numbers costs
milliseconds per row on a CPU.

The passes read a few thousand likely tokens instead of the whole vocabulary wherever these hold
every token that is kept: a cut-off drops all tokens below the likeliest one it drops, so it drops
what was left out if it drops something as likely. If that cannot be told of any row, all rows take
the passes over the vocabulary. `lax.cond` skips passes that no row needs.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from model_server.kernels.cpu.rows import choose_tokens
from sax.fields.sampling import UNCHANGED

_TINY = 1e-30
_BLOCK, _BLOCKS = 32, 128  # candidates come in blocks of tokens with neighbouring ids
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


class Candidates(NamedTuple):
    """The tokens that a row is drawn from, and what is known of those left out."""

    weights: jax.Array  # f32[R, C]; the largest is 1
    tokens: jax.Array  # u32[R, C]
    missed: jax.Array  # f32[R]: the largest weight left out; 0: none
    others: jax.Array  # f32[R]: the sum of the weights left out
    unknown: jax.Array  # bool[R]: a limit may have let in some of them, which count for the next


def draw(logits: jax.Array, rows: RowSampling) -> jax.Array:
    """Draw a token, i32[R], for each row of f32[R, V]; rows at temperature 0 get any."""
    if logits.shape[1] < 2 * _BLOCK * _BLOCKS:
        return _drawn(_everything(logits, rows), rows)
    limited = (rows.min_p > 0) | (rows.top_k > 0) | (rows.top_p < 1) | (rows.typical_p < 1)
    # A row without limits is drawn from the whole vocabulary, and so are those beside it.
    narrow = jnp.any(limited) & jnp.all(limited | (rows.temperature <= 0))
    drawn, complete = lax.cond(
        narrow,
        lambda: _drawn_from_few(logits, rows),
        lambda: (jnp.zeros_like(rows.position), jnp.zeros((), bool)),
    )
    return lax.cond(complete, lambda: drawn, lambda: _drawn(_everything(logits, rows), rows))


def _drawn_from_few(logits: jax.Array, rows: RowSampling) -> tuple[jax.Array, jax.Array]:
    """Return tokens, i32[R], and True if no row's limits let a token in that was left out."""
    few = _cut(_likely(logits, rows), rows)
    complete = ((few.missed == 0) & ~few.unknown) | (rows.temperature <= 0)
    return _raced(few, rows), jnp.all(complete)


def _drawn(of: Candidates, rows: RowSampling) -> jax.Array:
    return _raced(_cut(of, rows), rows)


def _raced(of: Candidates, rows: RowSampling) -> jax.Array:
    return race(of.weights, of.tokens, rows.seed, rows.position)


def _weights(logits: jax.Array, highest: jax.Array, rows: RowSampling) -> jax.Array:
    """Return f32[R, C] for logits f32[R, C]; highest: the highest logit of each row, f32[R, 1]."""
    return jnp.exp((logits - highest) / jnp.maximum(rows.temperature, _TINY)[:, None])


def _everything(logits: jax.Array, rows: RowSampling) -> Candidates:
    weights = _weights(logits, logits.max(-1, keepdims=True), rows)
    nothing = jnp.zeros(weights.shape[0], weights.dtype)
    tokens = lax.broadcasted_iota(jnp.uint32, weights.shape, 1)
    return Candidates(weights, tokens, nothing, nothing, nothing > 0)


def _likely(logits: jax.Array, rows: RowSampling) -> Candidates:
    """Return the blocks of tokens with the highest logits."""
    count, vocab = logits.shape
    padding = ((0, 0), (0, -vocab % _BLOCK))
    blocks = jnp.pad(logits, padding, constant_values=-jnp.inf).reshape(count, -1, _BLOCK)
    # Apart from what uses it: fused with that, XLA on CPU takes five times as long for all of it.
    # One barrier each: XLA's decomposition of TopK expects its results one by one.
    highest, order = map(lax.optimization_barrier, lax.top_k(blocks.max(-1), _BLOCKS + 1))
    taken = order[:, :_BLOCKS, None]
    tokens = taken * _BLOCK + lax.broadcasted_iota(jnp.int32, (count, _BLOCKS, _BLOCK), 2)
    flat, best = (count, _BLOCKS * _BLOCK), highest[:, :1]
    weights = _weights(jnp.take_along_axis(blocks, taken, axis=1).reshape(flat), best, rows)
    missed = _weights(highest[:, _BLOCKS:], best, rows)[:, 0]
    others = _weights(logits, best, rows).sum(-1) - weights.sum(-1)
    others = jnp.where(missed > 0, jnp.maximum(others, 0.0), 0.0)
    names = tokens.astype(jnp.uint32).reshape(flat)
    return Candidates(weights, names, missed, others, jnp.zeros_like(missed, bool))


def _cut(of: Candidates, rows: RowSampling) -> Candidates:
    """Zero the weights of all tokens that the limits drop, one limit after the other."""
    for asked, keep, limit in (
        (rows.min_p > 0, _keep_min_p, rows.min_p),
        (rows.top_k > 0, _keep_top_k, rows.top_k),
        (rows.top_p < 1, _keep_top_p, rows.top_p),
    ):
        of = _settled(of, _where_asked(asked, keep, of, limit), asked)
    return of._replace(weights=_where_asked(rows.typical_p < 1, _keep_typical, of, rows.typical_p))


def _where_asked(
    asked: jax.Array, keep: Callable[..., jax.Array], of: Candidates, limit: jax.Array
) -> jax.Array:
    return lax.cond(jnp.any(asked), keep, lambda weights, *_: weights, of.weights, limit, of.others)


def _settled(of: Candidates, kept: jax.Array, asked: jax.Array) -> Candidates:
    """Return what a limit kept; it must drop every token below one that it drops.

    Tokens left out are dropped if one at least as likely as all of them is. asked: bool[R], the
    rows that have the limit.
    """
    dropped = (kept == 0) & (of.weights > 0) & (of.weights >= of.missed[:, None])
    over = jnp.any(dropped, axis=-1)
    missed, others = (jnp.where(over, 0.0, each) for each in (of.missed, of.others))
    return Candidates(kept, of.tokens, missed, others, of.unknown | (asked & (missed > 0)))


def _keep_min_p(weights: jax.Array, min_p: jax.Array, others: jax.Array) -> jax.Array:
    """Zero all below min_p times the largest of each row."""
    del others  # none is larger
    return jnp.where(weights >= (min_p * weights.max(-1))[:, None], weights, 0.0)


def _keep_top_k(weights: jax.Array, top_k: jax.Array, others: jax.Array) -> jax.Array:
    """Zero all but the k largest of each row; ties with the k-th are kept."""
    del others  # none is larger
    wanted = jnp.where(top_k > 0, jnp.minimum(top_k, weights.shape[1]), weights.shape[1])
    ones = jnp.ones_like(weights)
    return _keep(weights, ones, wanted.astype(jnp.float32))


def _keep_top_p(weights: jax.Array, top_p: jax.Array, others: jax.Array) -> jax.Array:
    """Zero all but the fewest largest of each row that together reach top_p of its sum."""
    kept = _keep(weights, weights, top_p * (weights.sum(-1) + others))
    return jnp.where((top_p < 1)[:, None], kept, weights)


def _keep_typical(weights: jax.Array, typical_p: jax.Array, others: jax.Array) -> jax.Array:
    """Zero all but the fewest tokens closest to the entropy that reach typical_p of the sum.

    Locally typical sampling (Meister et al., 2022). The largest weight is 1, so that logarithms of
    weights are finite wherever a weight is not zero.
    """
    del others  # a row that leaves tokens out is not drawn from these
    shares = weights / weights.sum(-1, keepdims=True)
    surprise = jnp.where(shares > 0, -jnp.log(jnp.maximum(shares, _TINY)), 0.0)
    entropy = (shares * surprise).sum(-1, keepdims=True)
    nearness = jnp.where(shares > 0, 1 / (1 + jnp.abs(surprise - entropy)), 0.0)
    kept = _keep(nearness, shares, typical_p * shares.sum(-1))
    return jnp.where((kept > 0) | (typical_p >= 1)[:, None], weights, 0.0)


def _keep(weights: jax.Array, measure: jax.Array, wanted: jax.Array) -> jax.Array:
    """Keep weights at or above the highest cut-off whose kept measure is at least `wanted`."""
    order = lax.bitcast_convert_type(weights, jnp.uint32)  # same order: weights are not negative

    def refine(bit: jax.Array, cut: jax.Array) -> jax.Array:
        higher = cut | (jnp.uint32(1) << (jnp.uint32(30) - bit.astype(jnp.uint32)))
        kept = jnp.where(order >= higher[:, None], measure, 0.0).sum(-1)
        return jnp.where(kept >= wanted, higher, cut)

    cut = lax.fori_loop(0, 31, refine, jnp.zeros(weights.shape[0], jnp.uint32))
    return jnp.where(order >= cut[:, None], weights, 0.0)


def race(weights: jax.Array, tokens: jax.Array, seed: jax.Array, position: jax.Array) -> jax.Array:
    """Draw a token, i32[R], per row of f32[R, C] with probability proportional to its weight.

    tokens: u32[R, C]. seed: u32[R, 2]. position: i32[R].
    """
    uniform = jnp.minimum((_bits(seed, position, tokens) + 0.5) * 2.0**-32, _BELOW_ONE)
    winner = first_highest(weights / -jnp.log1p(-uniform))
    return jnp.take_along_axis(tokens, winner[:, None], axis=1)[:, 0].astype(jnp.int32)


def first_highest(values: jax.Array) -> jax.Array:
    """Return the first column of each row of f32[R, C] that has its highest value."""
    # Two plain reductions vectorise; argmax's paired reduction does not on a CPU.
    columns = lax.broadcasted_iota(jnp.int32, values.shape, 1)
    best = values == values.max(-1, keepdims=True)
    return jnp.where(best, columns, values.shape[1]).min(-1).clip(0, values.shape[1] - 1)


def _bits(seed: jax.Array, position: jax.Array, tokens: jax.Array) -> jax.Array:
    """Return random 32-bit numbers, rounded to f32[R, C]: a function of (seed, position, token).

    Threefry makes two words per row, and two rounds of a 32-bit finaliser mix them with each token.
    Threefry for every token took a quarter of a decode step on a CPU; this takes a thirtieth.
    """

    key = row_keys(seed, position)
    mixed = _mix(tokens * jnp.uint32(0x9E3779B9) ^ key[:, :1])
    return _mix(mixed + key[:, 1:]).astype(jnp.float32)


def row_keys(seed: jax.Array, position: jax.Array) -> jax.Array:
    """Return the two words, u32[R, 2], that key each row's random numbers."""

    def words(seed: jax.Array, at: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(seed, impl="threefry2x32")
        return jax.random.key_data(jax.random.fold_in(key, at))

    return jax.vmap(words)(seed, position)


def _mix(word: jax.Array) -> jax.Array:
    """Mix the bits of u32 so that each input bit flips every output bit in half of all cases."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> 16)


PADDING = -2  # as the target of a row, for the native kernel: nothing is chosen
TOP_LOGPROBS = 20  # the maximum in OpenAI's API
_TOP_BLOCK = 128
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
    tokens = kept[:, :, None] * _TOP_BLOCK + lax.broadcasted_iota(jnp.int32, values.shape, 2)
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
    padded = jnp.pad(values, ((0, 0), (0, -vocab % _TOP_BLOCK)), constant_values=fill)
    return padded.reshape(rows, -1, _TOP_BLOCK)
