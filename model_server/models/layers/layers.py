"""Building blocks of the families. They map flat tokens to flat tokens: no batch, no pages.

Weights are [out, in], as in most Hugging Face checkpoints: XLA:CPU multiplies that layout fastest
and nothing is transposed at load. Products take the weight's dtype and return f32; the residual
stream stays f32.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from model_server.kernels.cpu import rows
from model_server.kernels.cpu.tiles import dense_product
from model_server.kernels.row_sums import rounded, standardized, unit
from model_server.models.layers.low_rank import LowRank
from model_server.models.layers.shown_routes import are_shown, note_all, shown_routes
from model_server.models.weights.low_rank import LowRankPair, low_rank_pair
from model_server.models.weights.observed import Observed
from model_server.models.weights.quantized import Quantized
from model_server.models.weights.source import Joined, PaddedColumns, WeightSource, source_of
from model_server.models.weights.tiled import Tiled, TiledQuantized
from model_server.models.weights.weight import WeightForm, weight

EVERY_ROW: Any = np.zeros(0, np.int32)  # as live rows
_LANES = 128  # numbers side by side in a TPU's registers
Names = WeightSource | tuple[str, ...]
Axis = str | None


Matrix = jax.Array | Quantized | Tiled | TiledQuantized | Observed
LiveRows = nnx.Variable[jax.Array] | None  # i32[T], then -1; `set_live_rows` sets it


def project(x: jax.Array, kernel: Matrix, live: jax.Array | None = None) -> jax.Array:
    """[T, in] times transposed [out, in] in the kernel's dtype, accumulated in f32: f32[T, out].

    live: i32[T], the rows to multiply by the native kernels, then -1; None: all, by XLA unless the
    kernel is in tiles.
    """
    if isinstance(kernel, Tiled | TiledQuantized | Observed):
        return kernel.project(x, live)
    if live is not None:
        plain = kernel.dequantized() if isinstance(kernel, Quantized) else kernel
        return dense_product(x[:, None], plain[None], live)[:, 0]
    if isinstance(kernel, Quantized):
        return kernel.project(x)
    return lax.dot_general(
        x.astype(kernel.dtype), kernel, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )


def project_finely(x: jax.Array, kernel: jax.Array, live: jax.Array | None) -> jax.Array:
    """As `project` with f32[out, in], in full precision on every platform."""
    if live is not None:
        return project(x, kernel, live)
    return jnp.einsum("td,ed->te", x, kernel, precision="highest")


def sum_in_order(parts: jax.Array, axis: int) -> jax.Array:
    """Add [T, ...] along an axis in its order.

    XLA's sums have an order that depends on T. What is added was rounded before: on TPUs and GPUs
    by the barrier.
    """
    parts = lax.optimization_barrier(rounded(parts))
    each = (lax.index_in_dim(parts, i, axis, keepdims=False) for i in range(parts.shape[axis]))
    return functools.reduce(jnp.add, each)


class Linear(nnx.Module):
    def __init__(
        self,
        outputs: int,
        inputs: int,
        axes: tuple[Axis, Axis],
        source: Names = (),
        *,
        form: WeightForm,
        bias: Names | None = None,
        spread: float = 0.02,
    ) -> None:
        self.kernel = weight(
            (outputs, inputs),
            axes,
            source,
            dtype=form.dtype,
            spread=spread,
            quantization=form.quantization,
            layout=form.layout,
            table=axes[0] == "vocab",
            tiles=form.in_tiles,
        )
        if bias is not None:
            self.bias = weight((outputs,), axes[:1], bias, dtype=jnp.float32, spread=0.0)
        self.biased = bias is not None
        self.live: LiveRows = nnx.data(None)
        self.low_rank = _low_rank([outputs], inputs, [axes], [source], form)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.with_bias(self.unbiased(x))

    def unbiased(self, x: jax.Array) -> jax.Array:
        y = self.product(x)
        return y if self.low_rank is None else self.low_rank(x, [y])[0]

    def product(self, x: jax.Array) -> jax.Array:
        return project(x, self.kernel.get_value(), live_of(self))

    def with_bias(self, y: jax.Array) -> jax.Array:
        return y + lax.broadcast_to_rank(self.bias[...], y.ndim) if self.biased else y


class OnRows(Protocol):
    """A module that computes rows of a step, and knows which are no padding."""

    live: LiveRows


def live_of(module: OnRows) -> jax.Array | None:
    """Return the rows that are no padding, i32[T]; None: not known, or not by native kernels."""
    return None if module.live is None else module.live[...]


def _low_rank(
    outputs: Sequence[int],
    inputs: int,
    axes: Sequence[tuple[Axis, Axis]],
    sources: Sequence[Names],
    form: WeightForm,
) -> LowRank | None:
    """Return the adapters' factors of these projections; None: they take no adapter."""
    if form.adapters is None or axes[0][0] == "vocab":
        return None
    pairs: list[LowRankPair] = []
    for source in sources:
        pair = low_rank_pair(source_of(source))
        if pair is None:
            return None
        pairs.append(pair)
    return LowRank(outputs, inputs, axes, pairs, form)


class Branches(nnx.Module):
    """Several projections of one input, fused into a single product where nothing is sharded.

    Where their rows are sharded each keeps its own kernel, so that every device holds whole heads.
    """

    def __init__(
        self,
        outputs: Sequence[int],
        inputs: int,
        axes: Sequence[tuple[Axis, Axis]],
        sources: Sequence[Names],
        *,
        form: WeightForm,
        biases: Sequence[Names] | None = None,
    ) -> None:
        self.outputs = tuple(outputs)
        self.low_rank = _low_rank(outputs, inputs, axes, sources, form)
        form = replace(form, adapters=None)  # of the parts: they have them together
        kernels = [source_of(source) for source in sources]
        offsets = None if biases is None else [source_of(bias) for bias in biases]
        if all(form.layout.axis(of_rows) is None for of_rows, _ in axes):
            kernels = [Joined(tuple(kernels), sizes=self.outputs)]
            offsets = offsets and [Joined(tuple(offsets), sizes=self.outputs)]
            outputs, axes = [sum(outputs)], axes[:1]
        self.linears = nnx.List(
            [
                Linear(
                    size,
                    inputs,
                    axes[i],
                    kernels[i],
                    form=form,
                    bias=None if offsets is None else offsets[i],
                )
                for i, size in enumerate(outputs)
            ]
        )

    def __call__(self, x: jax.Array) -> list[jax.Array]:
        """Maps f32[T, in] to one f32[T, out] per branch."""
        made = self._products(x)
        return made if len(made) == len(self.outputs) else self._split(made[0])

    def joined(self, x: jax.Array) -> jax.Array:
        """Maps f32[T, in] to the branches side by side: f32[T, sum of out]."""
        made = self._products(x)
        return made[0] if len(made) == 1 else jnp.concatenate(made, axis=-1)

    def _products(self, x: jax.Array) -> list[jax.Array]:
        """One product per branch, or one of them all."""
        made = [linear.product(x) for linear in self.linears]
        made = made if self.low_rank is None else self.low_rank(x, made)
        return [linear.with_bias(y) for linear, y in zip(self.linears, made, strict=True)]

    def _split(self, joined: jax.Array) -> list[jax.Array]:
        ends = [sum(self.outputs[: i + 1]) for i in range(len(self.outputs) - 1)]
        return jnp.split(joined, ends, axis=-1)


class RmsNorm(nnx.Module):
    """x / rms(x) * scale (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467)."""

    def __init__(
        self, size: int, source: Names = (), *, epsilon: float, plus_one: bool = False
    ) -> None:
        # Gemma stores scale - 1.
        self.scale = weight(
            (size,), (None,), source, dtype=jnp.float32, spread=0.0 if plus_one else None
        )
        self.epsilon = epsilon
        self.plus_one = plus_one
        self.live: LiveRows = nnx.data(None)

    def __call__(self, x: jax.Array) -> jax.Array:
        live = live_of(self)
        if live is not None and x.ndim == 2:
            return self._native(x, None, live)[1]
        scale = self.scale[...] + 1.0 if self.plus_one else self.scale[...]
        return unit(x, self.epsilon) * lax.broadcast_to_rank(scale, x.ndim)

    def of_sum(self, x: jax.Array, added: jax.Array) -> tuple[jax.Array, jax.Array]:
        live = live_of(self)
        if live is not None:
            return self._native(x, added, live)
        x = x + added
        return x, self(x)

    def of_all(self, x: jax.Array) -> jax.Array:
        """As a call, of f32[..., D] whose rows are no tokens, so that none of them is padding."""
        if self.live is None:
            return self(x)
        return self._native(x.reshape(-1, x.shape[-1]), None, EVERY_ROW)[1].reshape(x.shape)

    def _native(
        self, x: jax.Array, added: jax.Array | None, live: Any
    ) -> tuple[jax.Array, jax.Array]:
        more = float(self.plus_one)
        return rows.rms_norm(x, added, live, self.scale[...], epsilon=self.epsilon, more=more)


def unit_rows(x: jax.Array, epsilon: float, live: jax.Array | None) -> jax.Array:
    """Return x / rms(x) of f32[T, D]; live: as of `project`."""
    if live is None:
        return unit(x, epsilon)
    ones = jnp.ones(x.shape[1:], jnp.float32)
    return rows.rms_norm(x, None, live, ones, epsilon=epsilon)[1]


class UnitNorm(nnx.Module):
    """x / rms(x), without a scale."""

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon

    def __call__(self, x: jax.Array) -> jax.Array:
        return unit(x, self.epsilon)


def sum_and_norm(norm: nnx.Module, x: jax.Array, added: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return x + added and its norm: f32[T, D] each."""
    if isinstance(norm, RmsNorm | LayerNorm):
        return norm.of_sum(x, added)
    x = x + added
    return x, norm(x)


class LayerNorm(nnx.Module):
    """(x - mean) / std * scale + bias (Ba et al. 2016, https://arxiv.org/abs/1607.06450)."""

    def __init__(
        self, size: int, scale: Names = (), bias: Names | None = (), *, epsilon: float
    ) -> None:
        self.scale = weight((size,), (None,), scale, dtype=jnp.float32)
        if bias is not None:
            self.bias = weight((size,), (None,), bias, dtype=jnp.float32, spread=0.0)
        self.biased = bias is not None
        self.epsilon = epsilon
        self.live: LiveRows = nnx.data(None)

    def __call__(self, x: jax.Array) -> jax.Array:
        if (live := live_of(self)) is not None and x.ndim == 2:
            return self._native(x, None, live)[1]
        normed = standardized(x, self.epsilon) * lax.broadcast_to_rank(self.scale[...], x.ndim)
        return normed + lax.broadcast_to_rank(self.bias[...], x.ndim) if self.biased else normed

    def of_sum(self, x: jax.Array, added: jax.Array) -> tuple[jax.Array, jax.Array]:
        if (live := live_of(self)) is not None:
            return self._native(x, added, live)
        x = x + added
        return x, self(x)

    def _native(
        self, x: jax.Array, added: jax.Array | None, live: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        bias = self.bias[...] if self.biased else None
        return rows.layer_norm(x, added, live, self.scale[...], bias, epsilon=self.epsilon)


class OwnHeadNorm(nnx.Module):
    """Layer norm of each head of f32[T, heads, Q], with scales of its own and no bias."""

    def __init__(
        self, heads: int, head_dim: int, source: WeightSource, axis: str | None, *, epsilon: float
    ) -> None:
        self.scale = weight((heads, head_dim), (axis, None), source, dtype=jnp.float32)
        self.epsilon = epsilon

    def __call__(self, x: jax.Array) -> jax.Array:
        return standardized(x, self.epsilon) * self.scale[...][None]


class Embedding(nnx.Module):
    """Token vectors; also the output head if tied."""

    def __init__(
        self,
        vocab: int,
        size: int,
        source: Names = (),
        *,
        form: WeightForm,
        spread: float = 0.02,
    ) -> None:
        self.size = size
        found = source_of(source)
        columns = _columns(found, vocab, size, form)
        self.padding = columns - size
        self.table = weight(
            (vocab, columns),
            ("vocab", "embed"),
            found if columns == size else PaddedColumns(found, size, columns),
            dtype=form.dtype,
            spread=spread,
            quantization=form.quantization,
            layout=form.layout,
            table=True,
            tiles=form.in_tiles,
        )
        self.live: LiveRows = nnx.data(None)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        table = self.table.get_value()
        if not isinstance(table, jax.Array):
            return table.rows(tokens)
        return table.at[tokens].get(mode="clip")[..., : self.size].astype(jnp.float32)

    def logits(self, x: jax.Array) -> jax.Array:
        if self.padding:
            x = jnp.pad(x, ((0, 0), (0, self.padding)))
        return project(x, self.table.get_value(), live_of(self))


def _columns(source: WeightSource, vocab: int, size: int, form: WeightForm) -> int:
    """Return the columns that a table of vectors is held with.

    XLA on TPUs holds one whose vectors are not whole lanes by columns, and every step would copy
    it whole to read some rows.
    """
    quantized = form.quantization
    if form.layout.platform != "tpu" or (
        quantized and quantized.packing_of(source, (vocab, size), table=True)
    ):
        return size
    return -(-size // _LANES) * _LANES


def run_layer(layer: Any, *inputs: Any) -> Any:
    """Call a layer. Layers of one shape are traced once: the rest hit jit's cache."""
    if not are_shown():
        return _run(layer, *inputs)
    made, noted = _run_shown(layer, *inputs)
    note_all(noted)
    return made


@jax.jit
def _run(layer: Any, *inputs: Any) -> Any:
    return layer(*inputs)


@jax.jit
def _run_shown(layer: Any, *inputs: Any) -> tuple[Any, list[jax.Array]]:
    with shown_routes() as noted:
        return layer(*inputs), noted
