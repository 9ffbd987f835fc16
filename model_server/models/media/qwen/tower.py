"""The vision tower of Qwen2-VL and its successors: patches to vectors of the language model.

The towers of other families are built alike; a `TowerShape` says where they differ.
Sources: Wang et al. 2024 (arXiv:2409.12191), Bai et al. 2025 (arXiv:2502.13923), Bai et al. 2025
(arXiv:2511.21631), Kimi Team 2026 (arXiv:2602.02276); names of tensors are those of published
checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.kernels.whole import attend_in_groups
from model_server.models.layers.attention import AttentionSources
from model_server.models.layers.layers import LiveRows, live_of, project, run_layer
from model_server.models.layers.rope import Rotary, rope_frequencies
from model_server.models.media.tower_layer import (
    ScaledTowerLayer,
    TowerAttention,
    TowerLayer,
    attend,
    dense,
)
from model_server.models.weights.source import Tensor, cut
from model_server.models.weights.weight import WeightForm, weight

_UNSEEN = -1e30


class PatchAttention(TowerAttention):
    """Patches see those of their own group, in groups where there are windows."""

    def __init__(self, shape: TowerShape, name: str, form: WeightForm, window: int | None) -> None:
        """window: patches of a group at most, which lie next to each other; None: all see all."""
        narrow = shape.head_dim * (shape.kv_heads or shape.heads)
        sources = shape.sources(shape.embed, narrow, name)
        super().__init__(shape.embed, shape.heads, sources, form, kv_heads=shape.kv_heads)
        self.window = window
        norms = [shape.norm(shape.head_dim, f"{name}.{part}_norm") for part in "qk"]
        self.norms = nnx.List(norms if shape.normed_heads else [])

    def split(self, x: jax.Array) -> list[jax.Array]:
        """As `TowerAttention`; queries and keys are normed where the tower does."""
        parts = super().split(x)
        for at, norm in enumerate(self.norms):
            parts[at] = norm(parts[at])
        return parts

    def there(self, seen: jax.Array, pieces: int) -> jax.Array:
        return seen >= 0

    def mixed(self, q: jax.Array, k: jax.Array, v: jax.Array, seen: jax.Array) -> jax.Array:
        """seen: i32[S, P], the group of each patch, ascending in windows; -1: padding."""
        live = live_of(self)
        if self.window is None:
            return attend(q, k, v, (seen >= 0).sum(1), live=live)
        if live is not None:
            return attend_in_groups(q, k, v, seen)
        return in_windows(q, k, v, seen, self.window)


def joined(
    embed: int, narrow: int, name: str, parts: tuple[str, str] = ("qkv", "proj")
) -> AttentionSources:
    """Queries, keys and values, of `embed`, `narrow` and `narrow` numbers, come from one matrix.

    parts: names of that matrix and of the one behind attention, below `name`.
    """
    whole, ends = embed + 2 * narrow, (0, embed, embed + narrow, embed + 2 * narrow)
    kernel, bias = (Tensor(f"{name}.{parts[0]}.{part}") for part in ("weight", "bias"))
    q, k, v = (cut(kernel, *each, of=whole) for each in pairwise(ends))
    of_q, of_k, of_v = (cut(bias, *each, of=whole) for each in pairwise(ends))
    out, out_bias = dense(f"{name}.{parts[1]}")
    return AttentionSources(q=q, k=k, v=v, out=out, biases=(of_q, of_k, of_v), out_bias=out_bias)


def separate(
    _: int, __: int, name: str, parts: Sequence[str] = ("q", "k", "v", "proj")
) -> AttentionSources:
    """Queries, keys and values have matrices of their own."""
    (q, of_q), (k, of_k), (v, of_v), (out, out_bias) = (dense(f"{name}.{part}") for part in parts)
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
class PartNames:
    """Names that checkpoints give to the parts of a tower, below its own."""

    kernel: str = "patch_embed.proj"  # of patches
    positions: str = "pos_embed.weight"
    layers: str = "blocks"
    norms: tuple[str, str] = ("norm1", "norm2")  # of a layer
    attention: str = ".attn"  # with its dot; "": its parts lie directly below the layer
    ffw: str = "mlp"
    first: str | None = None  # a norm behind the kernel; None: there is none
    last: str | None = None  # a norm behind the layers
    scales: tuple[str, str] | None = None  # of what a layer's halves add; None: there are none
    deep: str = "deepstack_merger_list"


BuildNorm = Callable[[int, str], nnx.Module]  # from its size and name
# Makes vectors of the language model from patches f32[N, D], `merge` squared of which lie next to
# each other for each; from the tower's shape and name.
BuildMerger = Callable[["TowerShape", str, WeightForm], nnx.Module]


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerShape:
    layers: int
    embed: int
    heads: int
    out: int  # numbers of a vector of the language model
    # Colours, frames, rows and columns; without frames: as two-dimensional kernels are stored
    patch: tuple[int, ...]
    merge: int  # patches of a side that become one vector
    theta: float  # base of the rotations by row and column
    kv_heads: int | None = None  # of keys and values; None: as many as of queries
    normed_heads: bool = False  # queries and keys are normed
    patch_bias: bool = False
    sources: Callable[[int, int, str], AttentionSources] = joined  # of attention, see `joined`
    side: int | None = None  # of the square of learned positions; None: there are none
    square: bool = False  # it is stored in rows and columns
    taps: Taps | None = None  # how it is stretched; None: its corners are the image's
    window: int | None = None  # vectors of a window's side; None: no windows
    whole: tuple[int, ...] = ()  # layers without windows
    deep: tuple[int, ...] = ()  # layers whose results become vectors of their own
    merged_time: bool = False  # frames that see each other become one, their mean
    names: PartNames = PartNames()
    norm: BuildNorm
    ffw: Callable[[int, str, WeightForm], nnx.Module]  # of a layer, from its number and name
    merger: BuildMerger
    deep_merger: BuildMerger | None = None
    rotation: Callable[[jax.Array, int, float], Rotary] | None = None  # None: `axial_rotation`

    name: str = "visual"

    @property
    def head_dim(self) -> int:
        return self.embed // self.heads

    @property
    def frames(self) -> int:
        """Frames of a patch."""
        return self.patch[1] if len(self.patch) > 3 else 1


def _layer(shape: TowerShape, index: int, name: str, form: WeightForm) -> TowerLayer:
    windowed = shape.window is not None and index not in shape.whole
    most = (shape.window * shape.merge) ** 2 if windowed and shape.window else None
    first, second = (shape.norm(shape.embed, f"{name}.{norm}") for norm in shape.names.norms)
    attention = PatchAttention(shape, f"{name}{shape.names.attention}", form, most)
    ffw = shape.ffw(index, f"{name}.{shape.names.ffw}", form)
    if shape.names.scales is None:
        return TowerLayer(first, attention, second, ffw)
    scales = [f"{name}.{part}" for part in shape.names.scales]
    return ScaledTowerLayer(first, attention, second, ffw, shape.embed, scales)


class QwenTower(nnx.Module):
    """A `MediaEncoder` of images."""

    def __init__(self, shape: TowerShape, form: WeightForm) -> None:
        self.shape, names, name = shape, shape.names, shape.name
        self.live: LiveRows = nnx.data(None)
        self.kernel = weight(
            (shape.embed, *shape.patch),
            (None,) * (1 + len(shape.patch)),
            (f"{name}.{names.kernel}.weight",),
            dtype=form.dtype,
            spread=0.02,
        )
        if shape.patch_bias:
            bias = (f"{name}.{names.kernel}.bias",)
            self.bias = weight((shape.embed,), (None,), bias, dtype=jnp.float32, spread=0.0)
        if shape.side is not None:
            sides = (shape.side, shape.side) if shape.square else (shape.side**2,)
            self.positions = weight(
                (*sides, shape.embed),
                (*(None for _ in sides), "embed"),
                (f"{name}.{names.positions}",),
                dtype=jnp.float32,
                spread=0.02,
            )
        self.first, self.last = (
            nnx.List([] if norm is None else [shape.norm(shape.embed, f"{name}.{norm}")])
            for norm in (names.first, names.last)
        )
        each = [f"{name}.{names.layers}.{at}" for at in range(shape.layers)]
        self.layers = nnx.List([_layer(shape, at, of, form) for at, of in enumerate(each)])
        self.merger = shape.merger(shape, name, form)
        deep = [f"{name}.{names.deep}.{at}" for at in range(len(shape.deep))]
        assert shape.deep_merger is not None or not deep, "such layers have mergers"
        self.deep = nnx.List(
            [shape.deep_merger(shape, of, form) for of in deep if shape.deep_merger]
        )

    def __call__(
        self,
        pieces: jax.Array,  # f32[S, P, C]
        places: jax.Array,  # i32[S, P, K]: as `PatchGrid` gives them
        lengths: jax.Array,  # i32[S]
    ) -> jax.Array:
        """Returns f32[S, P / merge^2, out * (1 + deep)]."""
        images, count, size = pieces.shape
        place, there = jnp.arange(count)[None], jnp.arange(count)[None] < lengths[:, None]
        x = self._embedded(pieces.reshape(-1, size), places.reshape(-1, places.shape[-1]))
        if self.shape.window is None:
            made = self._run(x, places, jnp.where(there, 0, -1))
            return made.reshape(images, -1, made.shape[-1])
        order = jnp.where(there, places[..., 2], place)
        x = _taken(x.reshape(images, count, -1), order).reshape(x.shape)
        at = _taken(places, order)
        made = self._run(x, at, jnp.where(there, places[..., 3], -1))
        each = self.shape.merge**2
        back = jnp.argsort(order[:, ::each] // each, axis=1)
        return _taken(made.reshape(images, -1, made.shape[-1]), back)

    def _embedded(self, pieces: jax.Array, places: jax.Array) -> jax.Array:
        """f32[N, D]"""
        kernel, shape = self.kernel[...], self.shape
        x = project(pieces, kernel.reshape(kernel.shape[0], -1), live_of(self))
        if shape.patch_bias:
            x = x + self.bias[...][None]
        if shape.side is not None:
            table = self.positions[...].reshape(-1, shape.embed)
            x = x + interpolated(table, shape.side, places, shape.taps or corners)
        if shape.merged_time:
            x = x + moments(places[:, 4], places[:, 5], shape.embed)
        return _through(self.first, x)

    def _run(self, x: jax.Array, at: jax.Array, groups: jax.Array) -> jax.Array:
        """f32[N / merge^2, out * (1 + deep)] of patches f32[N, D] at places i32[S, P, K]."""
        shape, deep = self.shape, list[jax.Array]()
        turned = (shape.rotation or axial_rotation)(
            at.reshape(-1, at.shape[-1]), shape.head_dim, shape.theta
        )
        for index, layer in enumerate(self.layers):
            x = run_layer(layer, x, groups, turned)
            if index in shape.deep:
                deep.append(self.deep[shape.deep.index(index)](x))
        x = _through(self.last, x)
        if shape.merged_time:
            x = mean_over_frames(x, at, groups >= 0)
        return jnp.concatenate([self.merger(x), *deep], axis=-1)


def _through(norms: Iterable[nnx.Module], x: jax.Array) -> jax.Array:
    for norm in norms:
        x = norm(x)
    return x


def axial_rotation(at: jax.Array, head_dim: int, theta: float) -> Rotary:
    """Rotations of patches by rows and columns i32[N, 2 ...]: half of a head's pairs each."""
    frequencies = jnp.asarray(rope_frequencies(head_dim // 2, theta))
    angles = at[:, :2].astype(jnp.float32)[:, :, None] * frequencies[None, None]
    return _turning(angles)


def paired_rotation(at: jax.Array, head_dim: int, theta: float) -> Rotary:
    """Rotations of patches by columns and rows in turn, of pairs that lie side by side."""
    frequencies = jnp.asarray(rope_frequencies(head_dim // 2, theta))
    angles = at[:, 1::-1].astype(jnp.float32)[:, None, :] * frequencies[None, :, None]
    return _turning(angles, interleaved=True)


def column_rotation(at: jax.Array, head_dim: int, theta: float) -> Rotary:
    """Rotations of patches by columns, then by rows, of pairs that lie side by side."""
    frequencies = jnp.asarray(rope_frequencies(head_dim // 2, theta))
    angles = at[:, 1::-1].astype(jnp.float32)[:, :, None] * frequencies[None, None]
    return _turning(angles, interleaved=True)


def moving_rotation(at: jax.Array, head_dim: int, theta: float) -> Rotary:
    """Rotations of patches by frames, rows and columns, a third of the pairs each; the rest of a
    head does not turn."""
    frequencies = jnp.asarray(rope_frequencies(2 * (head_dim // 3 // 2), theta))
    places = at[:, jnp.asarray((4, 0, 1))].astype(jnp.float32)
    return _turning(places[:, :, None] * frequencies[None, None])


def _turning(angles: jax.Array, *, interleaved: bool = False) -> Rotary:
    angles = angles.reshape(angles.shape[0], 1, -1)
    return Rotary(jnp.cos(angles), jnp.sin(angles), interleaved=interleaved)


def moments(frame: jax.Array, frames: jax.Array, embed: int) -> jax.Array:
    """f32[N, D]: sines and cosines of a frame's number, of patches i32[N]; of a picture: zeros."""
    frequencies = jnp.asarray(rope_frequencies(embed, 10000.0))
    angles = frame.astype(jnp.float32)[:, None] * frequencies[None]
    made = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return jnp.where((frames > 1)[:, None], made, 0.0)


def mean_over_frames(x: jax.Array, places: jax.Array, there: jax.Array) -> jax.Array:
    """f32[N, D]: the mean of each place over the frames of its input, at the first one's patches.

    x: f32[N, D]; places: i32[S, P, 6]; there: bool[S, P].
    """
    images, count = there.shape
    height, width, frame, frames = (places[..., at] for at in (2, 3, 4, 5))
    into = jnp.arange(count)[None] - frame * height * width + count * jnp.arange(images)[:, None]
    shares = jnp.where(there, 1 / jnp.maximum(frames, 1).astype(jnp.float32), 0.0).reshape(-1, 1)
    into = jnp.where(there, into, images * count).reshape(-1)
    return jnp.zeros_like(x).at[into].add(x * shares, mode="drop")


# The nearest of `side` places to each of some among `count`, and their shares: i32[N], f32[N] each.
Taps = Callable[[jax.Array, jax.Array, int], Sequence[tuple[jax.Array, jax.Array]]]


def corners(at: jax.Array, count: jax.Array, side: int) -> list[tuple[jax.Array, jax.Array]]:
    """The two nearest; the first and the last of both lie together."""
    last = jnp.maximum(count - 1, 1).astype(jnp.float32)
    exact = at.astype(jnp.float32) * (side - 1) / last
    first = jnp.floor(exact)
    share, before = exact - first, first.astype(jnp.int32)
    return [(before, 1 - share), (jnp.minimum(before + 1, side - 1), share)]


def cubic(at: jax.Array, count: jax.Array, side: int) -> list[tuple[jax.Array, jax.Array]]:
    """The four nearest by Keys' kernel with a = -0.75 (Keys 1981); the edges lie together."""
    exact = (at.astype(jnp.float32) + 0.5) * side / jnp.maximum(count, 1).astype(jnp.float32) - 0.5
    first = jnp.floor(exact)
    found = list[tuple[jax.Array, jax.Array]]()
    for offset in (-1, 0, 1, 2):
        place, far = first + offset, jnp.abs(exact - first - offset)
        inner = (1.25 * far - 2.25) * far * far + 1
        outer = ((-0.75 * far + 3.75) * far - 6.0) * far + 3.0
        share = jnp.where(far <= 1, inner, outer)
        found.append((jnp.clip(place, 0, side - 1).astype(jnp.int32), share))
    return found


def centred(at: jax.Array, count: jax.Array, side: int) -> list[tuple[jax.Array, jax.Array]]:
    """The two nearest; the edges of both lie together."""
    exact = (at.astype(jnp.float32) + 0.5) * side / jnp.maximum(count, 1).astype(jnp.float32) - 0.5
    exact = jnp.maximum(exact, 0.0)
    first = jnp.floor(exact)
    share, before = exact - first, jnp.minimum(first.astype(jnp.int32), side - 1)
    return [(before, 1 - share), (jnp.minimum(before + 1, side - 1), share)]


def interpolated(table: jax.Array, side: int, places: jax.Array, taps: Taps = corners) -> jax.Array:
    """f32[N, D]: a square of learned positions, stretched over the image.

    table: f32[side * side, D]; places: i32[N, 4 ...], row, column, height and width in patches.
    """
    row, column, height, width = (places[:, at] for at in range(4))
    made = jnp.zeros((places.shape[0], table.shape[1]), jnp.float32)
    for down, of_row in taps(row, height, side):
        for right, of_column in taps(column, width, side):
            vectors = table.at[down * side + right].get(mode="clip")
            made = made + vectors * (of_row * of_column)[:, None]
    return made


def _taken(x: jax.Array, order: jax.Array) -> jax.Array:
    """[S, P, ...]: of each image what i32[S, P] says, in that order."""
    return jnp.take_along_axis(x, order[..., None], axis=1)
