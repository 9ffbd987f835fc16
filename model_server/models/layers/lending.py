"""Layers that borrow keys and values, and inputs of each layer's own (Gemma 3n and 4).

A layer that borrows attends to the lender's pages. The lender has written its new keys and values
there; they are handed on beside the pages and written once more, the same numbers in the same
places, because every kernel writes before it reads.

Every token has a small vector for every layer (ai.google.dev/gemma): part from a table of its own,
part projected from its embedding. They stand behind the stream in one row, so that stages pass them
on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.kernels.media_vectors import MediaVectors
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.kernels.row_sums import rounded
from model_server.models.layers.activations import Activation, gated
from model_server.models.layers.attention import AttentionShape
from model_server.models.layers.decoder import Decoder
from model_server.models.layers.layers import (
    Branches,
    Embedding,
    Linear,
    RmsNorm,
    UnitNorm,
    live_of,
    run_layer,
)
from model_server.models.layers.rope import Rotary
from model_server.models.weights.sharding import HeadSplit, split_heads
from model_server.models.weights.source import RepeatedGroups, Tensor, WeightSource
from model_server.models.weights.stage import Stage
from model_server.models.weights.weight import WeightForm


class KeysValues(NamedTuple):
    """New keys and values of one layer, rotated and normed."""

    keys: jax.Array  # f32[T, K, Q]
    values: jax.Array  # f32[T, K, Q]


class LentAttention(nnx.Module):
    """Norms queries, keys and, without a scale, values; projects keys only if none are lent."""

    def __init__(
        self,
        shape: AttentionShape,
        prefix: str,
        form: WeightForm,
        *,
        epsilon: float,
        borrows: bool,
        keys_as_values: bool = False,  # values are the keys, before their norm and rotation
        biased: bool = False,
    ) -> None:
        s, self.shape = shape, shape
        self.borrows = borrows
        split = split_heads(s.heads, s.kv_heads, form.layout.shards("heads"))
        parts = ("q",) if borrows else ("q", "k") if keys_as_values else ("q", "k", "v")
        self.projections = Branches(
            [(s.heads if part == "q" else split.kv_heads) * s.head_dim for part in parts],
            s.embed,
            [(split.axis, "embed")] * len(parts),
            [_source(f"{prefix}.{part}_proj.weight", part, s, split) for part in parts],
            form=form,
            biases=[_source(f"{prefix}.{part}_proj.bias", part, s, split) for part in parts]
            if biased
            else None,
        )
        self.q_norm = RmsNorm(s.head_dim, (f"{prefix}.q_norm.weight",), epsilon=epsilon)
        if not borrows:
            self.k_norm = RmsNorm(s.head_dim, (f"{prefix}.k_norm.weight",), epsilon=epsilon)
            self.v_norm = UnitNorm(epsilon)
        self.out = Linear(
            s.embed,
            s.heads * s.head_dim,
            ("embed", split.axis),
            (f"{prefix}.o_proj.weight",),
            form=form,
            bias=(f"{prefix}.o_proj.bias",) if biased else None,
        )

    def __call__(
        self,
        x: jax.Array,  # f32[T, D]
        rotation: Rotary,
        pages: LayerPages,  # the lender's, if it borrows
        lent: KeysValues | None,
        batch: PagedBatch,
    ) -> tuple[jax.Array, LayerPages, KeysValues]:
        """Returns f32[T, D], the pages with the new tokens written, and what can be lent."""
        s = self.shape
        q, *rest = (each.reshape(x.shape[0], -1, s.head_dim) for each in self.projections(x))
        if lent is None:
            keys, values = rest[0], rest[-1]
            lent = KeysValues(rotation(self.k_norm(keys)), self.v_norm(values))
        q = rotation(self.q_norm(q))
        if s.window is None:  # of Gemma 4 layers with a window alone see an image to its end
            batch = replace(batch, block_ahead=None)
        mixed, pages = batch.attend(pages, q, *lent, scale=s.scale, window=s.window)
        return self.out(mixed.reshape(x.shape[0], -1)), pages, lent


def _source(name: str, part: str, shape: AttentionShape, split: HeadSplit) -> WeightSource:
    found = Tensor(name)
    copied = part != "q" and split.copies > 1
    return RepeatedGroups(found, shape.head_dim, split.copies) if copied else found


class PerLayerInputs(nnx.Module):
    """Makes the vectors of all layers from a token and its embedding."""

    def __init__(
        self,
        vocab: int,
        embed: int,
        layers: int,
        size: int,  # P: numbers of each layer's vector
        form: WeightForm,
        *,
        epsilon: float,
        scale: float,  # of the table
        other: int,  # row of a token that the table does not have, as of an image or a sound
    ) -> None:
        self.vocab, self.size, self.scale, self.other = vocab, size, scale, other
        self.shrink = embed**-0.5
        table = ("model.embed_tokens_per_layer.weight",)
        self.table = Embedding(vocab, layers * size, table, form=form)
        projection = ("model.per_layer_model_projection.weight",)
        self.projection = Linear(layers * size, embed, (None, "embed"), projection, form=form)
        norm = ("model.per_layer_projection_norm.weight",)
        self.norm = RmsNorm(size, norm, epsilon=epsilon)

    def __call__(self, tokens: jax.Array, x: jax.Array) -> jax.Array:
        """Maps i32[T] and their embeddings f32[T, D] to f32[T, L * P]."""
        known = (tokens >= 0) & (tokens < self.vocab)
        read = rounded(self.table(jnp.where(known, tokens, self.other)) * self.scale)
        projected = (self.projection(x) * self.shrink).reshape(x.shape[0], -1, self.size)
        return (rounded(self.norm(projected)).reshape(read.shape) + read) * 2**-0.5


class PerLayerGate(nnx.Module):
    """norm(out(activation(gate(x)) * own)), to be added to a stream."""

    def __init__(
        self,
        embed: int,
        size: int,
        prefix: str,
        form: WeightForm,
        *,
        activation: Activation,
        epsilon: float,
    ) -> None:
        gate, out = f"{prefix}.per_layer_input_gate.weight", f"{prefix}.per_layer_projection.weight"
        self.gate = Linear(size, embed, (None, "embed"), (gate,), form=form)
        self.out = Linear(embed, size, ("embed", None), (out,), form=form)
        norm = (f"{prefix}.post_per_layer_input_norm.weight",)
        self.norm = RmsNorm(embed, norm, epsilon=epsilon)
        self.activation = activation

    def __call__(self, x: jax.Array, own: jax.Array) -> jax.Array:
        """Maps f32[T, D] and the layer's inputs f32[T, P] to f32[T, D]."""
        opening = self.gate(x)
        return self.norm(self.out(gated(self.activation, opening, own, live_of(self.gate))))


class LendingDecoder(Decoder):
    """A decoder whose layers may have inputs of their own, and lend keys and values to later ones.

    A layer is called as layer(x, own, rotation, pages, lent, batch) and returns (x, pages, lent).
    A row is the stream, f32[T, S], then the inputs of all layers.
    """

    def __init__(
        self,
        *,
        lenders: Sequence[int | None],  # of each layer; None: it has keys and values of its own
        inputs: PerLayerInputs | None,
        stream: int,  # S
        expand: nnx.Module | None = None,  # f32[T, D] -> f32[T, S]; None: as it is
        **parts: Any,
    ) -> None:
        super().__init__(**parts)
        self.lenders, self.stream, self.first = tuple(lenders), stream, 0
        self.size = 0 if inputs is None else inputs.size
        self.inputs, self.expand = inputs, expand

    def embed(
        self, tokens: jax.Array, positions: jax.Array, media: MediaVectors | None = None
    ) -> jax.Array:
        """Returns rows f32[T, S + L * P], the input of the first layer."""
        x = super().embed(tokens, positions, media)
        stream = x if self.expand is None else self.expand(x)
        if self.inputs is None:
            return stream
        return jnp.concatenate([stream, self.inputs(tokens, x)], axis=-1)

    def run(
        self,
        x: jax.Array,
        positions: jax.Array,
        pages: Sequence[LayerPages],
        batch: PagedBatch,
        media: MediaVectors | None = None,
    ) -> tuple[jax.Array, tuple[LayerPages, ...]]:
        """Runs rows f32[T, S + L * P] through the layers; returns them with the updated pages.

        media: it has no levels, which are for layers that take nothing but the stream.
        """
        assert media is None or not media.levels, "no model of this kind has any"
        rotations = {rope: rope and rope.at(positions) for rope in dict.fromkeys(self.ropes)}
        stream, behind = x[:, : self.stream], x[:, self.stream :]
        stream, held = batch.divided(stream), list(pages)
        lent: dict[int | None, KeysValues] = {}
        for at, (layer, rope) in enumerate(zip(self.layers, self.ropes, strict=True)):
            index = self.first + at
            lender = self.lenders[index]
            source = at if lender is None else lender - self.first
            own = behind[:, index * self.size : (index + 1) * self.size]
            stream, kept, made = run_layer(
                layer, stream, own, rotations[rope], held[source], lent.get(lender), batch
            )
            stream, held[source], lent[index] = batch.divided(stream), kept, made
        return jnp.concatenate([stream, behind], axis=-1), tuple(held)

    def keep(self, stage: Stage) -> None:
        """As `Decoder`; the first stage makes the inputs of all layers."""
        super().keep(stage)
        self.first = stage.first
        if not stage.is_first:
            del self.inputs, self.expand


class FinalStream(nnx.Module):
    """The last norm of a decoder whose rows have more than the stream."""

    def __init__(self, norm: nnx.Module, stream: int) -> None:
        self.norm, self.stream = norm, stream

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f32[T, S + L * P] to f32[T, D]."""
        return self.norm(x[:, : self.stream])
