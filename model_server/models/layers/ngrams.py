"""Vectors of the last few tokens, from tables that are read by hashes of them.

Source: transformers' `models/qwen4_exp`. The tokens t0 (the newest), t1, ... of an n-gram choose
row (m0 t0 ^ m1 t1 ^ ...) mod p of each head's part of a table, for n from 2 up; a separator among
them hides those before it. As JAX has no 64-bit numbers on all platforms, the hashes are computed
in pairs of 32-bit words. What the tables give is gated by the residual streams, and a dilated
convolution over it is added.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from model_server.checkpoints.ngram_hashes import NGramHashes
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import StateArray
from model_server.kernels.row_sums import logistic, mixed_streams, row_sum, silu
from model_server.kernels.states import Filtering, State
from model_server.models.layers.convolution import Convolution
from model_server.models.layers.gated_streams import StreamNorms
from model_server.models.layers.layers import Embedding, Linear, Names
from model_server.models.weights.weight import WeightForm

Words = tuple[jax.Array, jax.Array]  # u32[...] each: the upper and lower half of 64-bit numbers


def ngram_rows(hashes: NGramHashes, tokens: jax.Array) -> jax.Array:
    """Return the row of each head i32[T, heads] for tokens i32[T, n], the newest first.

    Tokens are at least 0, and their multiples below 2**63.
    """
    longest = len(hashes.multipliers)
    each = len(hashes.sizes) // (longest - 1)  # heads for every n
    words, rows = _times(tokens[:, 0], hashes.multipliers[0]), []
    for at in range(1, longest):
        more = _times(tokens[:, at], hashes.multipliers[at])
        words = words[0] ^ more[0], words[1] ^ more[1]
        heads = slice((at - 1) * each, at * each)
        rows.append(_modulo(words, hashes.sizes[heads]))
    found = jnp.concatenate(rows, axis=1).astype(jnp.int32)
    return found + np.asarray(hashes.offsets, np.int32)[None]


def _times(tokens: jax.Array, factor: int) -> Words:
    """Multiply i32[T] below 2**24 by a number, a byte of it after the other."""
    small = tokens.astype(jnp.uint32)
    high, low = jnp.zeros_like(small), jnp.zeros_like(small)
    for at in range(8):
        part = small * np.uint32((factor >> 8 * at) & 255)
        if at >= 4:
            high = high + (part << 8 * (at - 4))
            continue
        added = part << 8 * at
        low = low + added
        high = high + (low < added).astype(jnp.uint32)
        high = high + (part >> (32 - 8 * at)) if at else high
    return high, low


def _modulo(words: Words, sizes: tuple[int, ...]) -> jax.Array:
    """Return the rest u32[T, heads] by each of some numbers below 2**31."""
    by = np.asarray(sizes, np.uint32)[None]
    step = 32 - max(sizes).bit_length()  # bits that a rest can be shifted by
    rest, low, left = words[0][:, None] % by, words[1][:, None], 32
    while left:
        bits = min(step, left)
        left -= bits
        rest = ((rest << bits) | ((low >> left) & np.uint32((1 << bits) - 1))) % by
    return rest


@dataclass(frozen=True, slots=True)
class Recalling:
    """An `Advance` whose state is the last tokens, f32[n - 1]: gives each token those before it."""

    separator: int  # hides the tokens before it, in whose places it stands

    def __call__(self, state: State, given: jax.Array, count: jax.Array) -> tuple[State, jax.Array]:
        """Map tokens f32[C] to f32[C, n], the newest first."""
        (before,), columns = state, given.shape[0]
        known = jnp.concatenate([before, given])
        size, seen = before.shape[0], [given]
        for back in range(1, size + 1):
            its = known[size - back : size - back + columns]
            hidden = back > 1 and seen[-1] == self.separator
            seen.append(jnp.where(hidden, float(self.separator), its))
        return (lax.dynamic_slice_in_dim(known, count, size),), jnp.stack(seen, axis=1)


class DilatedConvolution(Convolution):
    """A convolution that sees every `dilation`-th input."""

    def __init__(self, channels: int, width: int, dilation: int, source: Names) -> None:
        super().__init__(channels, width, source)
        self.dilation = dilation

    @property
    def taps(self) -> jax.Array:
        """f32[D, (K - 1) * dilation + 1], zeros between its own."""
        own = self.kernel[...][:, 0]
        spread = jnp.pad(own[..., None], ((0, 0), (0, 0), (self.dilation - 1, 0)))
        return spread.reshape(own.shape[0], -1)[:, self.dilation - 1 :]


@dataclass(frozen=True, slots=True, kw_only=True)
class NGramShape:
    embed: int  # D
    streams: int  # N
    size: int  # numbers of the vectors of all heads together
    width: int  # of the convolution
    separator: int
    hashes: NGramHashes
    epsilon: float

    @property
    def tokens(self) -> int:
        """Tokens of the longest n-gram; the convolution sees every so many."""
        return len(self.hashes.multipliers)

    @property
    def reach(self) -> int:
        """Inputs of the convolution before a token."""
        return (self.width - 1) * self.tokens

    def states(self) -> tuple[StateArray, StateArray]:
        """The convolution's inputs, and the last tokens."""
        return StateArray((self.streams * self.embed, self.reach)), StateArray((self.tokens - 1,))


class NGrams(nnx.Module):
    """Makes what a layer's table of n-grams adds to the residual streams."""

    def __init__(self, shape: NGramShape, name: str, table: Names, form: WeightForm) -> None:
        s, self.shape = shape, shape
        wide = s.streams * s.embed

        def linear(part: str, outputs: int) -> Linear:
            source = (f"{name}.{part}.weight",)
            return Linear(outputs, s.size, (None, "embed"), source, form=form)

        def norms(part: str) -> StreamNorms:
            return StreamNorms(s.streams, s.embed, f"{name}.{part}", epsilon=s.epsilon)

        each = s.size // len(s.hashes.sizes)
        self.table = Embedding(s.hashes.rows, each, table, form=form)
        self.keys, self.values = linear("key_proj", wide), linear("value_proj", s.embed)
        self.key_norms, self.query_norms = norms("norm_key"), norms("norm_query")
        self.input_norms = norms("norm_conv")
        self.convolution = DilatedConvolution(wide, s.width, s.tokens, (f"{name}.conv1d.weight",))

    def __call__(
        self,
        x: jax.Array,  # f32[T, N D]
        tokens: jax.Array,  # f32[T]
        state: State,
        batch: PagedBatch,
    ) -> tuple[jax.Array, State]:
        """Returns f32[T, N D] to be added, and the states with those of the new tokens."""
        s = self.shape
        opened, recalled = self._opened(x, tokens, state[1:], batch)
        inputs = self.input_norms(opened.reshape(x.shape)).reshape(x.shape)
        blank = (jnp.zeros((x.shape[1], s.reach), jnp.float32),)
        mixed, inputs_left = batch.advance(state[:1], blank, inputs, Filtering(self.convolution))
        # A product apart from the sum: XLA:CPU fuses them in some programs.
        more = mixed_streams(silu(mixed).reshape(opened.shape), None)
        return (opened + more).reshape(x.shape), (*inputs_left, *recalled)

    def _opened(
        self, x: jax.Array, tokens: jax.Array, state: State, batch: PagedBatch
    ) -> tuple[jax.Array, State]:
        """Return the gated values f32[T, N, D] of the tokens' n-grams."""
        s = self.shape
        blank = (jnp.full((s.tokens - 1,), s.separator, jnp.float32),)
        recalled, state = batch.advance(state, blank, tokens, Recalling(s.separator))
        rows = ngram_rows(s.hashes, recalled.astype(jnp.int32))
        vectors = self.table(rows.reshape(-1)).reshape(len(x), s.size)
        likeness = row_sum(self.key_norms(self.keys(vectors)) * self.query_norms(x))
        likeness = likeness * s.embed**-0.5
        opening = jnp.sqrt(jnp.maximum(jnp.abs(likeness), 1e-6)) * jnp.sign(likeness)
        opened = mixed_streams(self.values(vectors)[:, None], logistic(opening).swapaxes(1, 2))
        return opened, state


@functools.cache
def shard_names(name: str, parts: int) -> tuple[str, ...]:
    """Names of the tensors that hold a table of n-grams, part by part."""
    return tuple(f"{name}.shard_{part}.weight" for part in range(parts))
