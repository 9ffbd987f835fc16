"""The vision tower of Qwen2-VL and its successors: patches to vectors of the language model.

Sources: Wang et al. 2024 (arXiv:2409.12191), Bai et al. 2025 (arXiv:2502.13923), Bai et al. 2025
(arXiv:2511.21631); names of tensors are those of published checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.models.layers.attention import AttentionSources
from model_server.models.layers.layers import Linear, project, run_layer
from model_server.models.layers.rope import Rotary, rope_frequencies
from model_server.models.media.tower_layer import TowerAttention, TowerLayer, attend, dense
from model_server.models.weights.source import Tensor, cut
from model_server.models.weights.weight import WeightForm, weight

_UNSEEN = -1e30


class PatchAttention(TowerAttention):
    """Patches see those of their own group, in groups where there are windows."""

    def __init__(self, shape: TowerShape, name: str, form: WeightForm, window: int | None) -> None:
        """window: patches of a group at most, which lie next to each other; None: all see all."""
        sources = (_apart if shape.apart else _joined)(shape.embed, name)
        super().__init__(shape.embed, shape.heads, sources, form)
        self.window = window

    def mixed(self, q: jax.Array, k: jax.Array, v: jax.Array, seen: jax.Array) -> jax.Array:
        """seen: i32[S, P], the group of each patch, ascending in windows; -1: padding."""
        if self.window is None:
            return attend(q, k, v, (seen >= 0).sum(1))
        return in_windows(q, k, v, seen, self.window)


def _joined(embed: int, name: str) -> AttentionSources:
    """Queries, keys and values come from one projection."""
    kernel, bias = (Tensor(f"{name}.qkv.{part}") for part in ("weight", "bias"))
    ends = [(at * embed, (at + 1) * embed) for at in range(3)]
    q, k, v = (cut(kernel, *each, of=3 * embed) for each in ends)
    of_q, of_k, of_v = (cut(bias, *each, of=3 * embed) for each in ends)
    out, out_bias = dense(f"{name}.proj")
    return AttentionSources(q=q, k=k, v=v, out=out, biases=(of_q, of_k, of_v), out_bias=out_bias)


def _apart(embed: int, name: str) -> AttentionSources:
    (q, of_q), (k, of_k), (v, of_v), (out, out_bias) = (
        dense(f"{name}.{part}") for part in ("q", "k", "v", "proj")
    )
    return AttentionSources(q=q, k=k, v=v, out=out, biases=(of_q, of_k, of_v), out_bias=out_bias)


def in_windows(
    q: jax.Array, k: jax.Array, v: jax.Array, groups: jax.Array, window: int
) -> jax.Array:
    """f32[S, P, H, Q], each patch of its own group alone, which has at most `window`.

    Groups lie one after the other, so that a block of `window` queries sees nothing beyond the
    blocks before and after it.
    """
    images, patches, heads, size = q.shape
    count = -(-patches // window)
    rest = count * window - patches

    def blocks(x: jax.Array, fill: int) -> jax.Array:
        ends = ((0, 0), (0, rest), *(((0, 0),) * (x.ndim - 2)))
        return jnp.pad(x, ends, constant_values=fill).reshape(images, count, window, *x.shape[2:])

    def near(x: jax.Array, fill: int) -> jax.Array:
        made = blocks(x, fill)
        ends = ((0, 0), (1, 1), *(((0, 0),) * (made.ndim - 2)))
        wide = jnp.pad(made, ends, constant_values=fill)
        return jnp.concatenate([wide[:, :-2], made, wide[:, 2:]], axis=2)

    seen = blocks(groups, -1)[..., :, None] == near(groups, -1)[..., None, :]
    made = _attended(_flat(blocks(q, 0)), _flat(near(k, 0)), _flat(near(v, 0)), _flat(seen))
    return made.reshape(images, count * window, heads, size)[:, :patches]


def _flat(x: jax.Array) -> jax.Array:
    """[S * N, ...] of [S, N, ...]."""
    return x.reshape(-1, *x.shape[2:])


def _attended(q: jax.Array, k: jax.Array, v: jax.Array, seen: jax.Array) -> jax.Array:
    """f32[N, T, H, Q]; seen: bool[N, T, S]."""
    scores = jnp.einsum("nthq,nshq->nhts", q, k, preferred_element_type=jnp.float32)
    scores = jnp.where(seen[:, None], scores / math.sqrt(q.shape[-1]), _UNSEEN)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("nhts,nshq->nthq", weights, v, preferred_element_type=jnp.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergerNames:
    """Names that checkpoints give to the parts that merge patches, below their own."""

    norm: str = "norm"
    up: str = "linear_fc1"
    down: str = "linear_fc2"
    deep: str = "deepstack_merger_list"


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerShape:
    layers: int
    embed: int
    heads: int
    out: int  # numbers of a vector of the language model
    patch: tuple[int, int, int, int]  # colours, frames, rows and columns
    merge: int  # patches of a side that become one vector
    theta: float  # base of the rotations by row and column
    patch_bias: bool = False
    apart: bool = False  # queries, keys and values have matrices of their own
    side: int | None = None  # of the square of learned positions; None: there are none
    window: int | None = None  # vectors of a window's side; None: no windows
    whole: tuple[int, ...] = ()  # layers without windows
    deep: tuple[int, ...] = ()  # layers whose results become vectors of their own
    merger: MergerNames = MergerNames()
    norm: Callable[[int, str], nnx.Module]  # from its size and name
    ffw: Callable[[str, WeightForm], nnx.Module]  # from its name


def _layer(shape: TowerShape, index: int, name: str, form: WeightForm) -> TowerLayer:
    windowed = shape.window is not None and index not in shape.whole
    most = (shape.window * shape.merge) ** 2 if windowed and shape.window else None
    return TowerLayer(
        shape.norm(shape.embed, f"{name}.norm1"),
        PatchAttention(shape, f"{name}.attn", form, most),
        shape.norm(shape.embed, f"{name}.norm2"),
        shape.ffw(f"{name}.mlp", form),
    )


class PatchMerger(nnx.Module):
    """Makes one vector of each square of patches, by two matrices."""

    def __init__(self, shape: TowerShape, name: str, form: WeightForm, *, late: bool) -> None:
        """late: the norm is over the square, not over each patch."""
        names, self.size, self.late = shape.merger, shape.embed * shape.merge**2, late
        self.norm = shape.norm(self.size if late else shape.embed, f"{name}.{names.norm}")
        up, down = (
            Linear(
                outs,
                self.size,
                axes,
                (f"{name}.{part}.weight",),
                form=form,
                bias=(f"{name}.{part}.bias",),
            )
            for outs, part, axes in (
                (self.size, names.up, ("ffw", "embed")),
                (shape.out, names.down, ("embed", "ffw")),
            )
        )
        self.up, self.down = up, down

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f32[N, D] to f32[N / merge^2, out]."""
        x = x if self.late else self.norm(x)
        x = x.reshape(-1, self.size)
        x = self.norm(x) if self.late else x
        return self.down(jax.nn.gelu(self.up(x), approximate=False))


class QwenTower(nnx.Module):
    """A `MediaEncoder` of images."""

    def __init__(self, shape: TowerShape, form: WeightForm, name: str = "visual") -> None:
        self.shape = shape
        self.kernel = weight(
            (shape.embed, *shape.patch),
            (None,) * 5,
            (f"{name}.patch_embed.proj.weight",),
            dtype=form.dtype,
            spread=0.02,
        )
        if shape.patch_bias:
            bias = (f"{name}.patch_embed.proj.bias",)
            self.bias = weight((shape.embed,), (None,), bias, dtype=jnp.float32, spread=0.0)
        if shape.side is not None:
            self.positions = weight(
                (shape.side**2, shape.embed),
                (None, "embed"),
                (f"{name}.pos_embed.weight",),
                dtype=jnp.float32,
                spread=0.02,
            )
        self.layers = nnx.List(
            [_layer(shape, at, f"{name}.blocks.{at}", form) for at in range(shape.layers)]
        )
        self.merger = PatchMerger(shape, f"{name}.merger", form, late=False)
        deep = [f"{name}.{shape.merger.deep}.{at}" for at in range(len(shape.deep))]
        self.deep = nnx.List([PatchMerger(shape, each, form, late=True) for each in deep])

    def __call__(
        self,
        pieces: jax.Array,  # f32[S, P, C]
        places: jax.Array,  # i32[S, P, 4]: as `PatchGrid` gives them
        lengths: jax.Array,  # i32[S]
    ) -> jax.Array:
        """Returns f32[S, P / merge^2, out * (1 + deep)]."""
        images, count, size = pieces.shape
        place, there = jnp.arange(count)[None], jnp.arange(count)[None] < lengths[:, None]
        x = self._embedded(pieces.reshape(-1, size), places.reshape(-1, 4))
        if self.shape.window is None:
            made = self._run(x, places[..., :2], jnp.where(there, 0, -1))
            return made.reshape(images, -1, made.shape[-1])
        order = jnp.where(there, places[..., 2], place)
        x = _taken(x.reshape(images, count, -1), order).reshape(x.shape)
        at = _taken(places[..., :2], order)
        made = self._run(x, at, jnp.where(there, places[..., 3], -1))
        each = self.shape.merge**2
        back = jnp.argsort(order[:, ::each] // each, axis=1)
        return _taken(made.reshape(images, -1, made.shape[-1]), back)

    def _embedded(self, pieces: jax.Array, places: jax.Array) -> jax.Array:
        """f32[N, D]"""
        kernel = self.kernel[...]
        x = project(pieces, kernel.reshape(kernel.shape[0], -1))
        if self.shape.patch_bias:
            x = x + self.bias[...][None]
        if self.shape.side is not None:
            x = x + interpolated(self.positions[...], self.shape.side, places)
        return x

    def _run(self, x: jax.Array, at: jax.Array, groups: jax.Array) -> jax.Array:
        """f32[N / merge^2, out * (1 + deep)] of patches f32[N, D] at rows and columns [S, P, 2]."""
        shape, deep = self.shape, list[jax.Array]()
        rotation = axial_rotation(at.reshape(-1, 2), shape.embed // shape.heads, shape.theta)
        for index, layer in enumerate(self.layers):
            x = run_layer(layer, x, groups, rotation)
            if index in shape.deep:
                deep.append(self.deep[shape.deep.index(index)](x))
        return jnp.concatenate([self.merger(x), *deep], axis=-1)


def axial_rotation(at: jax.Array, head_dim: int, theta: float) -> Rotary:
    """Rotations of patches by rows and columns i32[N, 2]: half of a head's pairs each."""
    frequencies = jnp.asarray(rope_frequencies(head_dim // 2, theta))
    angles = at.astype(jnp.float32)[:, :, None] * frequencies[None, None]
    angles = angles.reshape(at.shape[0], 1, -1)
    return Rotary(jnp.cos(angles), jnp.sin(angles), interleaved=False)


def interpolated(table: jax.Array, side: int, places: jax.Array) -> jax.Array:
    """f32[N, D]: a square of learned positions, stretched so that its corners are the image's.

    table: f32[side * side, D]; places: i32[N, 4], row, column, height and width in patches.
    """
    row, column, height, width = (each[:, 0] for each in jnp.split(places, 4, axis=1))
    made = jnp.zeros((places.shape[0], table.shape[1]), jnp.float32)
    for down, of_row in _neighbours(row, height, side):
        for right, of_column in _neighbours(column, width, side):
            vectors = table.at[down * side + right].get(mode="clip")
            made = made + vectors * (of_row * of_column)[:, None]
    return made


def _neighbours(at: jax.Array, count: jax.Array, side: int) -> list[tuple[jax.Array, jax.Array]]:
    """The two nearest of `side` places and their shares: i32[N] and f32[N] each."""
    last = jnp.maximum(count - 1, 1).astype(jnp.float32)
    exact = at.astype(jnp.float32) * (side - 1) / last
    first = jnp.floor(exact)
    share, before = exact - first, first.astype(jnp.int32)
    return [(before, 1 - share), (jnp.minimum(before + 1, side - 1), share)]


def _taken(x: jax.Array, order: jax.Array) -> jax.Array:
    """[S, P, ...]: of each image what i32[S, P] says, in that order."""
    return jnp.take_along_axis(x, order[..., None], axis=1)
