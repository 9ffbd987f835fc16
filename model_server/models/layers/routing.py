"""Expert routing: which experts each token uses, and their weights.

Routers are small and their choices hinge on small differences, so they are float32 whatever the
model's dtype.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.kernels.row_sums import logistic, row_softmax, row_sum
from model_server.models.config_keys import ConfigKeys
from model_server.models.layers.layers import LiveRows, Names, live_of, project_finely
from model_server.models.weights.weight import weight
from sax.errors import CheckpointError


class Routes(NamedTuple):
    experts: jax.Array  # i32[T, k]
    weights: jax.Array  # f32[T, k]


class Choice(Protocol):
    """Turns scores into routes. Hashable, so that layers of one kind are traced once."""

    def __call__(self, scores: jax.Array, bias: jax.Array | None) -> Routes:
        """scores: f32[T, E], unsquashed; bias: f32[E], of a kind that the choice knows."""
        ...


@dataclass(frozen=True, slots=True)
class SoftmaxChoice:
    """Top-k by probability (Shazeer et al. 2017, https://arxiv.org/abs/1701.06538).

    A bias is part of the scores.
    """

    count: int
    normalised: bool  # weights of the chosen experts sum to one

    def __call__(self, scores: jax.Array, bias: jax.Array | None) -> Routes:
        scores = scores if bias is None else scores + bias[None]
        weights, experts = jax.lax.top_k(row_softmax(scores), self.count)
        if self.normalised:
            weights /= row_sum(weights)
        return Routes(experts, weights)


@dataclass(frozen=True, slots=True)
class GroupedSoftmaxChoice:
    """DeepSeek-V2's: by probability, in groups with the likeliest experts (arXiv:2405.04434)."""

    count: int
    groups: int
    kept: int  # groups whose experts may be chosen
    scale: float  # of the weights
    normalised: bool = False  # weights of the chosen experts sum to the scale

    def __call__(self, scores: jax.Array, bias: jax.Array | None) -> Routes:
        shares = row_softmax(scores if bias is None else scores + bias[None])
        if self.kept < self.groups:
            grouped = shares.reshape(len(shares), self.groups, -1)
            _, kept = jax.lax.top_k(grouped.max(-1), self.kept)
            open_groups = jax.nn.one_hot(kept, self.groups, dtype=bool).any(1)
            shares = jnp.where(open_groups[..., None], grouped, 0.0).reshape(shares.shape)
        weights, experts = jax.lax.top_k(shares, self.count)
        if self.normalised:
            weights /= row_sum(weights)
        return Routes(experts, weights * self.scale)


@dataclass(frozen=True, slots=True)
class CorrectedSoftmaxChoice:
    """Top-k by probability plus a learnt bias, which the weights leave out; they sum to one."""

    count: int
    least: float  # that the weights are divided by

    def __call__(self, scores: jax.Array, bias: jax.Array | None) -> Routes:
        shares = row_softmax(scores)
        wanted = shares if bias is None else shares + bias[None]
        _, experts = jax.lax.top_k(wanted, self.count)
        weights = jnp.take_along_axis(shares, experts, axis=-1)
        return Routes(experts, weights / jnp.maximum(row_sum(weights), self.least))


@dataclass(frozen=True, slots=True)
class SigmoidChoice:
    """Top-k by score; each weight is the sigmoid of its own."""

    count: int

    def __call__(self, scores: jax.Array, bias: jax.Array | None) -> Routes:
        best, experts = jax.lax.top_k(scores if bias is None else scores + bias[None], self.count)
        return Routes(experts, logistic(best))


@dataclass(frozen=True, slots=True)
class SparseMixerChoice:
    """The two best by score, each weighed among those within reach of it (arXiv:2409.12136).

    Within reach is what lies less than twice `jitter` below the best, relative to the larger of
    the two. The second best is weighed without the first.
    """

    jitter: float
    count: int = 2

    def __call__(self, scores: jax.Array, bias: jax.Array | None) -> Routes:
        scores = scores if bias is None else scores + bias[None]
        first, share = self._best(scores, scores)
        rest = jnp.where(jax.nn.one_hot(first, scores.shape[1], dtype=bool), -jnp.inf, scores)
        second, other = self._best(rest, scores)
        return Routes(jnp.stack([first, second], axis=1), jnp.stack([share, other], axis=1))

    def _best(self, left: jax.Array, scores: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return i32[T] and f32[T]; left: the scores f32[T, E] of those that may be chosen."""
        most = left.max(axis=1, keepdims=True)
        far = (most - scores) / jnp.maximum(jnp.abs(scores), most) > 2 * self.jitter
        shares = row_softmax(jnp.where(far, -jnp.inf, left))
        best = jnp.argmax(left, axis=1)
        return best, jnp.take_along_axis(shares, best[:, None], axis=1)[:, 0]


@dataclass(frozen=True, slots=True)
class GroupedSigmoidChoice:
    """DeepSeek-V3's: the best experts of the best groups (https://arxiv.org/abs/2412.19437).

    The bias, learnt to spread the load, affects the choice but not the weights.
    """

    count: int
    groups: int
    kept: int  # groups whose experts may be chosen
    normalised: bool
    scale: float  # of the weights
    least: float = 1e-20  # added to the sum that they are divided by
    softcap: float | None = None  # of the scores
    closed: float = -math.inf  # wanted of the experts in other groups

    def __call__(self, scores: jax.Array, bias: jax.Array | None) -> Routes:
        if self.softcap is not None:
            scores = self.softcap * jnp.tanh(scores / self.softcap)
        squashed = logistic(scores)
        wanted = self._in_kept_groups(squashed if bias is None else squashed + bias[None])
        _, experts = jax.lax.top_k(wanted, self.count)
        weights = jnp.take_along_axis(squashed, experts, axis=-1)
        if self.normalised:
            weights /= row_sum(weights) + self.least
        return Routes(experts, weights * self.scale)

    def _in_kept_groups(self, wanted: jax.Array) -> jax.Array:
        """f32[T, E] with the experts of all other groups closed."""
        if self.kept == self.groups:
            return wanted
        grouped = wanted.reshape(len(wanted), self.groups, -1)
        # A group scores the sum of its two best experts.
        best = jax.lax.top_k(grouped, 2)[0].sum(-1)
        _, kept = jax.lax.top_k(best, self.kept)
        open_groups = jax.nn.one_hot(kept, self.groups, dtype=bool).any(1)
        return jnp.where(open_groups[..., None], grouped, self.closed).reshape(wanted.shape)


class Router(nnx.Module):
    """Scores every expert for every token and chooses."""

    def __init__(
        self,
        embed: int,
        experts: int,
        choice: Choice,
        source: Names,
        *,
        bias: Names | None = None,
        bias_is_row: bool = False,  # stored as [1, E]
    ) -> None:
        # Replicated on every device, so that all choose alike.
        self.kernel = weight((experts, embed), (None, None), source, dtype=jnp.float32, spread=0.02)
        if bias is not None:
            shape = (1, experts) if bias_is_row else (experts,)
            self.bias = weight(shape, (None,) * len(shape), bias, dtype=jnp.float32, spread=0.0)
        self.biased = bias is not None
        self.choice = choice
        self.live: LiveRows = nnx.data(None)

    def __call__(self, x: jax.Array) -> Routes:
        scores = project_finely(x, self.kernel[...], live_of(self))
        return self.choice(scores, self.bias[...].reshape(-1) if self.biased else None)


def checked_count(keys: ConfigKeys, experts: int, key: str = "num_experts_per_tok") -> int:
    """Return the experts of a token. Raises CheckpointError if they exceed `experts`."""
    count = keys.whole(key)
    if count > experts:
        raise CheckpointError(
            f"config.json has {key} = {count}, more than the {experts} experts a token can use"
        )
    return count
