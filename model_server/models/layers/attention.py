"""Grouped-query attention; arguments cover the differences between families."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.kernels.cpu.rows import HeadNorm, HeadRotation, heads
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.kernels.row_sums import logistic
from model_server.models.layers.activations import Activation
from model_server.models.layers.layers import Branches, Linear, LiveRows, Names, RmsNorm, live_of
from model_server.models.layers.rope import Rotary
from model_server.models.weights.sharding import split_heads
from model_server.models.weights.source import RepeatedGroups, WeightSource, source_of
from model_server.models.weights.weight import WeightForm, weight


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    embed: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float  # applied to the scores
    window: int | None = None  # tokens a query sees, itself included; None: all
    softcap: float | None = None  # applied to the scores
    chunk: int | None = None  # a query sees its own chunk of so many tokens; None: no chunks
    value_dim: int | None = None  # numbers of a value; None: as many as of a key
    value_scale: float = 1.0
    reads: int | None = None  # numbers of a token that are projected; None: embed

    @property
    def found(self) -> int:
        """Numbers that a head finds: those of a value."""
        return self.value_dim or self.head_dim


@dataclass(frozen=True, slots=True)
class OutputGate:
    """A gate on what the heads find: a projection of the token, activated."""

    by_heads: bool = False  # a number for each head; False: one for each number that it found
    activation: Activation = logistic


EVERY_NUMBER = OutputGate()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSources:
    """Checkpoint sources of one layer's projections; no source means no bias."""

    q: Names = ()
    k: Names = ()
    v: Names = ()
    out: Names = ()
    biases: tuple[Names, Names, Names] | None = None  # q, k and v
    out_bias: Names | None = None
    gate: Names | None = None  # see OutputGate
    sinks: Names | None = None  # a score of each head without a value

    @classmethod
    def hugging_face(
        cls, prefix: str, *, biased: bool = False, out_biased: bool = False, out: str = "o_proj"
    ) -> AttentionSources:
        """Sources q_proj, k_proj, v_proj and o_proj under `prefix`, the usual naming."""
        q, k, v = ((f"{prefix}.{letter}_proj.weight",) for letter in "qkv")
        biases = tuple((f"{prefix}.{letter}_proj.bias",) for letter in "qkv")
        return cls(
            q=q,
            k=k,
            v=v,
            out=(f"{prefix}.{out}.weight",),
            biases=(biases[0], biases[1], biases[2]) if biased else None,
            out_bias=(f"{prefix}.{out}.bias",) if out_biased else None,
        )


Norm = Callable[[jax.Array], jax.Array]


class Attention(nnx.Module):
    """Projects, optionally norms and rotates queries and keys, attends, projects back."""

    def __init__(
        self,
        shape: AttentionShape,
        sources: AttentionSources,
        form: WeightForm,
        *,
        q_norm: nnx.Module | None = None,  # over f32[T, heads, Q]
        k_norm: nnx.Module | None = None,
        rotates_first: bool = False,  # before the norms
        gate: OutputGate = EVERY_NUMBER,
    ) -> None:
        s, self.shape = shape, shape
        split = split_heads(s.heads, s.kv_heads, form.layout.shards("heads"))

        def copied(source: Names, size: int) -> WeightSource:
            found = source_of(source)
            return RepeatedGroups(found, size, split.copies) if split.copies > 1 else found

        def of_parts(q: Names, k: Names, v: Names) -> list[Names]:
            return [q, copied(k, s.head_dim), copied(v, s.found)]

        self.qkv = Branches(
            [s.heads * s.head_dim, split.kv_heads * s.head_dim, split.kv_heads * s.found],
            s.reads or s.embed,
            [(split.axis, "embed")] * 3,
            of_parts(sources.q, sources.k, sources.v),
            form=form,
            biases=None if sources.biases is None else of_parts(*sources.biases),
        )
        self.out = Linear(
            s.embed,
            s.heads * s.found,
            ("embed", split.axis),
            sources.out,
            form=form,
            bias=sources.out_bias,
        )
        self.gated = sources.gate is not None
        if sources.gate is not None:
            axes, opens = (split.axis, "embed"), s.heads * (1 if gate.by_heads else s.found)
            self.gate = Linear(opens, s.embed, axes, sources.gate, form=form)
            self.gate_kind = gate
        self.has_sinks = sources.sinks is not None
        if sources.sinks is not None:
            axes = (split.axis,)
            self.sinks = weight((s.heads,), axes, sources.sinks, dtype=jnp.float32, spread=0.0)
        self.q_norm = q_norm
        self.k_norm = k_norm
        self.rotates_first = rotates_first
        self.live: LiveRows = nnx.data(None)

    def __call__(
        self,
        x: jax.Array,  # f32[T, D]
        rotation: Rotary | None,
        pages: LayerPages,
        batch: PagedBatch,
    ) -> tuple[jax.Array, LayerPages]:
        """Returns f32[T, D] and the pages with the new tokens written."""
        s = self.shape
        q, k, v = self._heads(x, rotation)
        if self.rotates_first:
            q, k = self._normed(q, k)
        if rotation is not None and rotation.query_scale is not None:
            q = q * rotation.query_scale
        sinks = self.sinks[...] if self.has_sinks else None
        how = {"scale": s.scale, "softcap": s.softcap, "window": s.window, "chunk": s.chunk}
        mixed, pages = batch.attend(pages, q, k, v, **how, sinks=sinks)
        mixed = mixed if s.value_scale == 1.0 else mixed * s.value_scale
        return self.out(self.opened(x, mixed).reshape(x.shape[0], -1)), pages

    def opened(self, x: jax.Array, mixed: jax.Array) -> jax.Array:
        """Gate what the heads found, f32[T, H, W], by the tokens f32[T, D], if there is a gate."""
        if not self.gated:
            return mixed
        opening = self.gate_kind.activation(self.gate(x))
        return mixed * opening.reshape(*mixed.shape[:2], -1)

    def _heads(self, x: jax.Array, rotation: Rotary | None) -> Sequence[jax.Array]:
        """Return queries f32[T, H, D], keys and values f32[T, K, D], normed and rotated."""
        size, found, live = self.shape.head_dim, self.shape.found, live_of(self)
        norms = (None, None) if self.rotates_first else (self.q_norm, self.k_norm)
        plain = size == found and all(isinstance(norm, RmsNorm | None) for norm in norms)
        if live is not None and plain:
            kv_heads = self.qkv.outputs[1] // size
            joined, norm = self.qkv.joined(x), _of_heads(*norms)
            return heads(joined, live, size, kv_heads, norm, rotation and _of_rows(rotation))
        sizes = zip(self.qkv(x), (size, size, found), strict=True)
        q, k, v = (part.reshape(x.shape[0], -1, width) for part, width in sizes)
        if not self.rotates_first:
            q, k = self._normed(q, k)
        if rotation is not None:
            q, k = rotation(q), rotation(k)
        return q, k, v

    def _normed(self, q: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
        if self.q_norm is None or self.k_norm is None:
            return q, k
        return self.q_norm(q), self.k_norm(k)


def _of_heads(q_norm: Any, k_norm: Any) -> HeadNorm | None:
    if q_norm is None or k_norm is None:
        return None
    return HeadNorm(q_norm.scale[...], k_norm.scale[...], q_norm.epsilon, float(q_norm.plus_one))


def _of_rows(rotation: Rotary) -> HeadRotation:
    return HeadRotation(rotation.cos, rotation.sin, rotation.interleaved)
