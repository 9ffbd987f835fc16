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
    reads: int | None = None  # numbers of a token that are projected; None: embed


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSources:
    """Checkpoint sources of one layer's projections; no source means no bias."""

    q: Names = ()
    k: Names = ()
    v: Names = ()
    out: Names = ()
    biases: tuple[Names, Names, Names] | None = None  # q, k and v
    out_bias: Names | None = None
    gate: Names | None = None  # sigmoids of it multiply what the heads found
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
    ) -> None:
        s, self.shape = shape, shape
        split = split_heads(s.heads, s.kv_heads, form.layout.shards("heads"))

        def copied(source: Names) -> WeightSource:
            found = source_of(source)
            return RepeatedGroups(found, s.head_dim, split.copies) if split.copies > 1 else found

        biases = sources.biases
        self.qkv = Branches(
            [n * s.head_dim for n in (s.heads, split.kv_heads, split.kv_heads)],
            s.reads or s.embed,
            [(split.axis, "embed")] * 3,
            [sources.q, copied(sources.k), copied(sources.v)],
            form=form,
            biases=None if biases is None else [biases[0], copied(biases[1]), copied(biases[2])],
        )
        self.out = Linear(
            s.embed,
            s.heads * s.head_dim,
            ("embed", split.axis),
            sources.out,
            form=form,
            bias=sources.out_bias,
        )
        self.gated = sources.gate is not None
        if sources.gate is not None:
            axes = (split.axis, "embed")
            self.gate = Linear(s.heads * s.head_dim, s.embed, axes, sources.gate, form=form)
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
        found = mixed.reshape(x.shape[0], -1)
        if self.gated:
            found = found * jax.nn.sigmoid(self.gate(x))
        return self.out(found), pages

    def _heads(self, x: jax.Array, rotation: Rotary | None) -> Sequence[jax.Array]:
        """Return queries f32[T, H, D], keys and values f32[T, K, D], normed and rotated."""
        size, live = self.shape.head_dim, live_of(self)
        norms = (None, None) if self.rotates_first else (self.q_norm, self.k_norm)
        if live is not None and all(isinstance(norm, RmsNorm | None) for norm in norms):
            kv_heads = self.qkv.outputs[1] // size
            joined, norm = self.qkv.joined(x), _of_heads(*norms)
            return heads(joined, live, size, kv_heads, norm, rotation and _of_rows(rotation))
        q, k, v = (part.reshape(x.shape[0], -1, size) for part in self.qkv(x))
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
