"""The decoder stack shared by every family: embedding, layers, final norm, logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.kernels.media_vectors import MediaVectors
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.kernels.row_sums import rounded
from model_server.models.layers.layers import EVERY_ROW, Embedding, Linear, live_of, run_layer
from model_server.models.layers.rope import Rope
from model_server.models.weights.stage import Stage


class ShownStreams:
    """Keeps the residual stream before some layers of one call, for a draft head."""

    def __init__(self, layers: Sequence[int]) -> None:
        self._layers = tuple(layers)
        self._streams: dict[int, jax.Array] = {}

    def see(self, layer: int, x: jax.Array) -> None:
        if layer in self._layers:
            self._streams[layer] = x

    def joined(self) -> jax.Array:
        """f32[T, n * D]: what was seen, side by side in the order of the layers given."""
        return jnp.concatenate([self._streams[layer] for layer in self._layers], axis=-1)


class Decoder(nnx.Module):
    """Maps tokens to hidden states, and hidden states to logits.

    A layer is called as layer(x, rotation, pages, batch) and returns (x, pages). A pipeline stage
    is the same module without the parts of other stages: its runner calls whichever of `embed`,
    `run`, `final_norm` and `logits` it has.
    """

    def __init__(
        self,
        *,
        embedding: Embedding,
        layers: Sequence[nnx.Module],
        final_norm: nnx.Module,
        head: Linear | None,  # None: tied to the embedding
        ropes: Sequence[Rope | None],  # one per layer
        embedding_scale: float = 1.0,
        logits_softcap: float | None = None,
        logits_scale: float = 1.0,
    ) -> None:
        self.embedding = embedding
        self.layers = nnx.List(list(layers))
        self.final_norm = final_norm
        self.head = head
        self.ropes = tuple(ropes)
        self.embedding_scale = embedding_scale
        self.logits_softcap = logits_softcap
        self.logits_scale = logits_scale
        self.shown: ShownStreams | None = None  # set for one call

    def __call__(
        self,
        tokens: jax.Array,  # i32[T]
        positions: jax.Array,  # i32[T]
        pages: Sequence[LayerPages],
        batch: PagedBatch,
        media: MediaVectors | None = None,
    ) -> tuple[jax.Array, tuple[LayerPages, ...]]:
        """Returns normalised hidden states f32[T, D] and the pages with the new tokens written."""
        x = self.embed(tokens, positions, media)
        x, written = self.run(x, positions, pages, batch, media)
        return self.final_norm(x), written

    def run(
        self,
        x: jax.Array,
        positions: jax.Array,
        pages: Sequence[LayerPages],
        batch: PagedBatch,
        media: MediaVectors | None = None,
    ) -> tuple[jax.Array, tuple[LayerPages, ...]]:
        """Runs f32[T, D] through the layers; returns it with the updated pages.

        positions: i32[T], or i32[3, T] of frames, rows and columns. media: its levels are added to
        what the first layers give.
        """
        rotations = {rope: rope and rope.at(positions) for rope in dict.fromkeys(self.ropes)}
        x = batch.divided(x)
        written: list[LayerPages] = []
        levels = 0 if media is None else media.levels
        parts = zip(self.layers, self.ropes, pages, strict=True)
        for index, (layer, rope, layer_pages) in enumerate(parts):
            if self.shown is not None:
                self.shown.see(index, x)
            x, layer_pages = run_layer(layer, x, rotations[rope], layer_pages, batch)
            if media is not None and index < levels:
                x = x + media.level(index)
            x = batch.divided(x)
            written.append(layer_pages)
        return x, tuple(written)

    def embed(
        self, tokens: jax.Array, positions: jax.Array, media: MediaVectors | None = None
    ) -> jax.Array:
        """Returns f32[T, D], the input of the first layer; vectors of media are not scaled."""
        x = self.embedding(tokens if media is None else jnp.maximum(tokens, 0))
        x = x if self.embedding_scale == 1.0 else rounded(x * self.embedding_scale)
        return x if media is None else media.placed(x)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Maps f32[R, D] to f32[R, V]."""
        made, cap = self.made_logits(hidden), self.logits_softcap
        return made if cap is None else cap * jnp.tanh(made / cap)

    def made_logits(self, hidden: jax.Array) -> jax.Array:
        """Maps f32[R, D] to f32[R, V], before any cap."""
        made: Any = self.embedding.logits(hidden) if self.head is None else self.head(hidden)
        return made if self.logits_scale == 1.0 else made * self.logits_scale

    def keep(self, stage: Stage) -> None:
        """Drop the parts of other stages; both first and last keep a tied embedding."""
        self.layers = nnx.List(self.layers[stage.layers])
        self.ropes = self.ropes[stage.layers]
        tied = self.head is None
        if not (stage.is_first or (stage.is_last and tied)):
            del self.embedding
        if not stage.is_last:
            del self.final_norm, self.head


# The rows of a program that are not padding, for the native kernels: they skip the others.
#
# So one compiled shape serves any number of tokens, and costs what they cost.


def set_live_rows(model: Any, tokens: jax.Array, heads: jax.Array) -> None:
    """Set the rows of the next call.

    tokens: bool[T], of the flat batch; heads: bool[R], of those that logits are made of.
    """
    _set(model, _places(tokens))
    head = getattr(model, "head", None) or getattr(model, "embedding", None)
    if isinstance(head, Linear | Embedding):
        head.live = nnx.Variable(_places(heads))


def set_whole_rows(model: Any, lengths: jax.Array | None, columns: int) -> None:
    """Set the rows of the next call of a model that reads whole inputs.

    lengths: i32[B], what is behind them is padding; None: nothing is. What a module names in
    `over_inputs` computes a row per input, of which none is padding.
    """
    rows = jnp.asarray(EVERY_ROW)
    if lengths is not None:
        rows = _places((jnp.arange(columns)[None] < lengths[:, None]).reshape(-1))
    _set(model, rows)
    for _, node in nnx.iter_graph(model):
        for path in getattr(node, "over_inputs", ()):
            part: Any = reduce(lambda each, name: getattr(each, name, None), path.split("."), node)
            if part is not None:
                _set(part, jnp.asarray(EVERY_ROW))


def set_rows_of(model: nnx.Module, there: jax.Array) -> None:
    """Set the rows of the next call of a part of a model; there: bool[T]."""
    _set(model, _places(there))


def live_rows_of(model: nnx.Module) -> jax.Array | None:
    """Return the rows that were set; None: none were, so that no native kernel computes them."""
    return next((live_of(node) for node in _on_rows(model)), None)


def _set(model: Any, rows: jax.Array) -> None:
    for node in _on_rows(model):
        node.live = nnx.Variable(rows)


def _on_rows(model: Any) -> Iterator[Any]:
    for _, node in nnx.iter_graph(model):
        if isinstance(node, nnx.Module) and hasattr(node, "live"):
            yield node


def _places(there: jax.Array) -> jax.Array:
    """i32[T]: where it is True, in order, then -1."""
    (places,) = jnp.nonzero(there, size=there.shape[0], fill_value=-1)
    return places.astype(jnp.int32)
