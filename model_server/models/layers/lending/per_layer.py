"""Inputs of each layer's own beside the stream between them (Gemma 3n, ai.google.dev/gemma).

Every token has a small vector for every layer: part from a table of its own, part projected from
its embedding. They stand behind the stream in one row, so that stages pass them on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.kernels.media_vectors import MediaVectors
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.models.layers.activations import Activation
from model_server.models.layers.decoder import Decoder
from model_server.models.layers.layers import Embedding, Linear, RmsNorm, run_layer
from model_server.models.layers.lending.lent_attention import KeysValues
from model_server.models.weights.stage import Stage
from model_server.models.weights.weight import WeightForm


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
        read = self.table(jnp.where(known, tokens, self.other)) * self.scale
        projected = (self.projection(x) * self.shrink).reshape(x.shape[0], -1, self.size)
        return (self.norm(projected).reshape(read.shape) + read) * 2**-0.5


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
        return self.norm(self.out(self.activation(self.gate(x)) * own))


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
