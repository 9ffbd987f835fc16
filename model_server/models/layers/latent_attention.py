"""Multi-head latent attention: each token caches one short vector shared by all heads.

Source: DeepSeek-AI 2024 (https://arxiv.org/abs/2405.04434, section 2.1). Every head's keys and
values are projections of a latent vector, plus one rotated key that all heads share. This is the
absorbed form: queries are projected into the latent space instead of cached latents out of it, so a
step reads the cache as a single KV head whose keys double as its values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.kernels.cpu.tiles import dense_product
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import CacheShape, LayerPages
from model_server.models.layers.attention import EVERY_NUMBER, OutputGate
from model_server.models.layers.layers import Linear, LiveRows, RmsNorm, live_of
from model_server.models.layers.rope import Rotary
from model_server.models.weights.sharding import split_heads
from model_server.models.weights.source import Stacked, Tensor, Transposed, WeightSource, cut
from model_server.models.weights.weight import WeightForm, weight


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentShape:
    embed: int
    heads: int
    plain_dim: int  # unrotated part of a head's queries and keys
    rotated_dim: int  # rotated part; the keys' is shared by all heads
    value_dim: int
    latent: int
    query_latent: int | None  # None: queries are projected in one step
    scale: float  # applied to the scores
    biased: bool  # the projections from and to the residual stream
    epsilon: float = 1e-6  # of the norms over latents; the other norms use the config's
    query_gain: float = 1.0  # of normed latents that queries are made of
    gain: float = 1.0  # of normed latents that are cached
    window: int | None = None  # tokens that a query sees; None: all before it

    @property
    def query_dim(self) -> int:
        return self.plain_dim + self.rotated_dim


# name below a layer's prefix, outputs, inputs, logical axes, whether it has a bias
DeclareLinear = Callable[[str, int, int, tuple[Any, Any], bool], Linear]


class HeadInputs(NamedTuple):
    """What heads make of the residual stream beside the keys."""

    narrow: jax.Array  # f32[T, R]: what queries are made of
    queries: jax.Array  # f32[T, H, plain + rotated]
    opening: jax.Array | None  # f32[T, H or H * value]: of the gate, unsquashed; None: no gate


class LatentAttention(nnx.Module):
    """Projects latents down, queries up and into latent space, attends, projects values back."""

    def __init__(
        self,
        shape: LatentShape,
        prefix: str,
        form: WeightForm,
        *,
        out: str = "o_proj",
        rotated_norm: str | None = None,  # name of the norm of the keys' rotated part
        sinks: str | None = None,  # name of each head's score without a value
        gate: str | None = None,  # name of the projection that gates what the heads found
        gate_kind: OutputGate = EVERY_NUMBER,
        borrows: bool = False,  # latents and rotated keys of an earlier layer: it makes none
    ) -> None:
        s, self.shape = shape, shape
        axis = split_heads(s.heads, s.heads, form.layout.shards("heads")).axis

        def linear(
            name: str, outputs: int, inputs: int, axes: tuple[Any, Any], biased: bool
        ) -> Linear:
            bias = (f"{prefix}.{name}.bias",) if biased else None
            source = (f"{prefix}.{name}.weight",)
            return Linear(outputs, inputs, axes, source, form=form, bias=bias)

        if s.query_latent is not None:
            down = (None, "embed")
            self.query_down = linear("q_a_proj", s.query_latent, s.embed, down, s.biased)
            name = f"{prefix}.q_a_layernorm.weight"
            self.query_norm = RmsNorm(s.query_latent, (name,), epsilon=s.epsilon)
        self.queries = self.query_up(linear, axis)
        self.borrows, self.norms_rotated = borrows, rotated_norm is not None
        if not borrows:
            rows, name = s.latent + s.rotated_dim, f"{prefix}.kv_a_layernorm.weight"
            self.down = linear("kv_a_proj_with_mqa", rows, s.embed, (None, "embed"), s.biased)
            self.norm = RmsNorm(s.latent, (name,), epsilon=s.epsilon)
        if rotated_norm is not None:
            source = (f"{prefix}.{rotated_norm}.weight",)
            self.rotated_norm = RmsNorm(s.rotated_dim, source, epsilon=s.epsilon)
        both = f"{prefix}.kv_b_proj.weight"
        key_rows = _head_rows(both, s, 0, s.plain_dim)
        value_rows = _head_rows(both, s, s.plain_dim, s.plain_dim + s.value_dim)

        def up(outputs: int, inputs: int, parts: list[WeightSource]) -> nnx.Param:
            # Too small to be worth quantising. Inputs come last because XLA:CPU multiplies that
            # layout ten times faster, and supports bfloat16 in no other.
            shape, axes = (s.heads, outputs, inputs), (axis, None, None)
            return weight(shape, axes, Stacked(tuple(parts)), dtype=form.dtype, spread=0.02)

        self.key_up = up(s.latent, s.plain_dim, [Transposed(part) for part in key_rows])
        self.value_up = up(s.value_dim, s.latent, value_rows)
        self.live: LiveRows = nnx.data(None)
        self.out = linear(out, s.embed, s.heads * s.value_dim, ("embed", axis), s.biased)
        self.gated, self.gate_kind = gate is not None, gate_kind
        if gate is not None:
            opens = s.heads * (1 if gate_kind.by_heads else s.value_dim)
            self.gate = linear(gate, opens, s.embed, (axis, "embed"), False)
        self.has_sinks = sinks is not None
        if sinks is not None:
            source = (f"{prefix}.{sinks}",)
            self.sinks = weight((s.heads,), (axis,), source, dtype=jnp.float32, spread=0.0)

    def query_up(self, linear: DeclareLinear, axis: Any) -> Linear:
        """Declare the projection that makes queries; axis: of the heads."""
        s = self.shape
        if s.query_latent is None:
            return linear("q_proj", s.heads * s.query_dim, s.embed, (axis, "embed"), False)
        return linear("q_b_proj", s.heads * s.query_dim, s.query_latent, (axis, None), False)

    def __call__(
        self,
        x: jax.Array,  # f32[T, D]
        rotation: Rotary | None,
        pages: LayerPages,
        batch: PagedBatch,
    ) -> tuple[jax.Array, LayerPages]:
        """Returns f32[T, D] and the pages with the new tokens written."""
        s, made = self.shape, self.head_inputs(x)
        queries, keys = self.latent_queries(made, rotation), self.latent_keys(x, rotation)
        how: Any = {"scale": s.scale, "window": s.window, "sinks": self.scores()}
        mixed, pages = batch.attend(pages, queries, keys, None, **how)
        return self.of_latents(mixed[..., : s.latent], made), pages

    def head_inputs(self, x: jax.Array) -> HeadInputs:
        """Map f32[T, D]."""
        s, narrow = self.shape, x
        if s.query_latent is not None:
            narrow = _scaled(self.query_norm(self.query_down(x)), s.query_gain)
        queries = self.queries(narrow).reshape(x.shape[0], s.heads, s.query_dim)
        return HeadInputs(narrow, queries, self.gate(x) if self.gated else None)

    def scores(self) -> jax.Array | None:
        """f32[H]: each head's score without a value; None: there are none."""
        return self.sinks[...] if self.has_sinks else None

    def latent_keys(self, x: jax.Array, rotation: Rotary | None) -> jax.Array:
        """f32[T, 1, latent + rotated]: cached."""
        latent, shared = jnp.split(self.down(x), [self.shape.latent], axis=-1)
        if self.norms_rotated:
            shared = self.rotated_norm(shared)
        shared, latent = (
            _turned(rotation, shared[:, None]),
            _scaled(self.norm(latent), self.shape.gain),
        )
        return jnp.concatenate([latent[:, None], shared], axis=-1)

    def of_latents(self, mixed: jax.Array, made: HeadInputs) -> jax.Array:
        """Map each head's mixture of latents f32[T, H, latent] to f32[T, D]."""
        values = self._per_head(mixed, self.value_up[...])
        if made.opening is not None:
            opening = self.gate_kind.activation(made.opening)
            values = values * opening.reshape(*values.shape[:2], -1)
        return self.out(values.reshape(mixed.shape[0], -1))

    def latent_queries(self, made: HeadInputs, rotation: Rotary | None) -> jax.Array:
        """f32[T, H, latent + rotated]: compared with the cached keys."""
        plain, rotated = jnp.split(made.queries, [self.shape.plain_dim], axis=-1)
        absorbed = self._per_head(plain, self.key_up[...])
        return self.grown(
            jnp.concatenate([absorbed, _turned(rotation, rotated)], axis=-1), rotation
        )

    def grown(self, queries: jax.Array, rotation: Rotary | None) -> jax.Array:
        """Scale queries f32[T, H, latent + rotated] by their positions."""
        if rotation is None or rotation.query_scale is None:
            return queries
        return queries * rotation.query_scale

    def _per_head(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        """f32[T, H, N]: each head's row of [T, H, K] times its transposed kernel [N, K]."""
        live = live_of(self)
        if live is not None:
            return dense_product(x, kernel, live)
        seen = x.astype(kernel.dtype)
        return jnp.einsum("thk,hnk->thn", seen, kernel, preferred_element_type=jnp.float32)


def _scaled(x: jax.Array, gain: float) -> jax.Array:
    return x if gain == 1.0 else x * gain


def _turned(rotation: Rotary | None, x: jax.Array) -> jax.Array:
    return x if rotation is None else rotation(x)


def _head_rows(name: str, s: LatentShape, start: int, stop: int) -> list[WeightSource]:
    """Rows [start, stop) of every head in the tensor that holds keys and values."""
    rows = s.plain_dim + s.value_dim
    firsts = range(0, s.heads * rows, rows)
    return [cut(Tensor(name), i + start, i + stop, of=s.heads * rows) for i in firsts]


def latent_cache(
    *, layers: int, heads: int, latent: int, rotated: int
) -> Callable[[int], CacheShape]:
    """Cache of one KV head, replicated on every device, that holds keys and values at once."""

    def on(shards: int) -> CacheShape:
        return CacheShape(
            layers=layers,
            kv_heads=1,
            key_dim=latent + rotated,
            value_dim=0,
            query_axis=split_heads(heads, heads, shards).axis,
        )

    return on
