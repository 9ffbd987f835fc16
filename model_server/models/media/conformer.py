"""Conformers of a Universal Speech Model, and the encoders of Gemma 3n and Gemma 4 around them.

Two convolutions shorten a spectrogram to a place for 40 ms; layers of a feed-forward, attention
among near places, a convolution of each number by itself and a second feed-forward follow.

Sources: Zhang et al. 2023 (arXiv:2303.01037), Gulati et al. 2020 (arXiv:2005.08100), and for the
shift of relative positions Dai et al. 2019 (arXiv:1901.02860), appendix B; names and config keys
are those of Hugging Face's `Gemma3nAudioEncoder` and `Gemma4AudioModel`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.models.layers.activations import Activation
from model_server.models.layers.layers import LayerNorm, Linear, RmsNorm, UnitNorm, run_layer
from model_server.models.media.projector import Gemma3nEmbedder
from model_server.models.media.tower_layer import dense, heads_axis
from model_server.models.weights.weight import WeightForm, weight

_TOWER, _EMBEDDER = "audio_tower", "embed_audio"
_EPSILON = 1e-6  # of the norms for which no key says it
_UNSEEN = -1e9  # in place of the score of what is not seen


class LayerNames(NamedTuple):
    """Names of the parts of a layer."""

    layer: str
    first_ffw: str
    before_attention: str
    attention: str
    positions: str
    post: str
    after_attention: str
    last_ffw: str
    norm: str
    matrix: str  # what follows the name of a projection whose numbers may be clipped


class Halving(NamedTuple):
    """One of the convolutions in front: its kernel and stride over frames and bins."""

    channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]  # frames of silence in front and behind


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformerShape:
    names: LayerNames
    bins: int
    halvings: tuple[Halving, Halving]
    group_epsilon: float | None  # norms over all frames so far; None: over channels
    embed: int
    heads: int
    layers: int
    width: int  # places of the convolution in a layer, all before
    chunk: int  # places whose queries are computed together
    past: int  # places in front of a chunk, and behind it, that are read
    future: int
    behind: int  # places before its own, and after, that a place sees
    ahead: int
    positions: tuple[int, int]  # relative positions that have vectors: from, down to
    key_scale: float
    cap: float  # of scores
    share: float  # of a feed-forward that is added
    clip: float
    clipped: bool  # projections have bounds of their own, which the checkpoint holds
    activation: Activation
    epsilon: float

    @property
    def together(self) -> int:
        """Frames that become one place."""
        first, second = self.halvings
        return first.stride[0] * second.stride[0]


class Bounded(nnx.Module):
    """A projection whose inputs and outputs may be clipped."""

    def __init__(
        self,
        outputs: int,
        inputs: int,
        axes: tuple[str | None, str | None],
        name: str,
        form: WeightForm,
        *,
        matrix: str = ".linear",  # what follows the name in that of the kernel
        clipped: bool,
    ) -> None:
        kernel = (f"{name}{matrix}.weight",)
        self.linear = Linear(outputs, inputs, axes, kernel, form=form)
        ends = ("input_min", "input_max", "output_min", "output_max") if clipped else ()
        self.bounds = nnx.List(
            [weight((), (), (f"{name}.{end}",), dtype=jnp.float32) for end in ends]
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        if not len(self.bounds):
            return self.linear(x)
        low, high, least, most = (bound[...] for bound in self.bounds)
        return jnp.clip(self.linear(jnp.clip(x, low, high)), least, most)


def _bounded(
    shape: ConformerShape,
    sizes: tuple[int, int],
    axes: tuple[str | None, str | None],
    name: str,
    form: WeightForm,
) -> Bounded:
    """Return a projection of a conformer; sizes: of its outputs and inputs."""
    return Bounded(*sizes, axes, name, form, matrix=shape.names.matrix, clipped=shape.clipped)


class RunningNorm(nnx.Module):
    """A norm over all numbers of a frame and of those before it, with a scale for each channel."""

    def __init__(self, channels: int, name: str, epsilon: float) -> None:
        self.scale = weight((channels,), (None,), (f"{name}.weight",), dtype=jnp.float32)
        self.epsilon = epsilon

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f32[S, T, F, C] to the same; each frame's spread is from its own running mean."""
        _, frames, bins, channels = x.shape
        count = jnp.arange(1, frames + 1, dtype=jnp.float32)[None, :, None, None] * (
            bins * channels
        )
        mean = jnp.cumsum(x.sum((2, 3), keepdims=True), 1) / count
        spread = jnp.cumsum(jnp.square(x - mean).sum((2, 3), keepdims=True), 1) / count
        return (x - mean) * jax.lax.rsqrt(spread + self.epsilon) * self.scale[...][None, None, None]


class NormedHalving(nnx.Module):
    def __init__(
        self, halving: Halving, inputs: int, name: str, shape: ConformerShape, form: WeightForm
    ) -> None:
        self.halving, channels = halving, halving.channels
        self.kernel = weight(
            (channels, inputs, *halving.kernel),
            (None,) * 4,
            (f"{name}.conv.weight",),
            dtype=form.dtype,
            spread=0.02,
        )
        self.norm = (
            LayerNorm(channels, (f"{name}.norm.weight",), None, epsilon=shape.epsilon)
            if shape.group_epsilon is None
            else RunningNorm(channels, f"{name}.norm", shape.group_epsilon)
        )

    def __call__(self, x: jax.Array, ends: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps f32[S, T, F, in], zeros from i32[S] on, to the same with fewer frames and bins."""
        kernel = self.kernel.get_value()
        made = jax.lax.conv_general_dilated(
            x.astype(kernel.dtype),
            kernel,
            self.halving.stride,
            (self.halving.padding, (1, 1)),
            dimension_numbers=("NHWC", "OIHW", "NHWC"),
            precision=jax.lax.Precision.HIGHEST if kernel.dtype == jnp.float32 else None,
            preferred_element_type=jnp.float32,
        )
        ends = -(-ends // self.halving.stride[0])
        there = jnp.arange(made.shape[1])[None] < ends[:, None]
        return jnp.where(there[..., None, None], jax.nn.relu(self.norm(made)), 0.0), ends


def _norm(size: int, name: str, epsilon: float = _EPSILON) -> RmsNorm:
    return RmsNorm(size, (f"{name}.weight",), epsilon=epsilon)


class NearAttention(nnx.Module):
    """Places see those near them; scores depend on the distance, too, and are capped."""

    def __init__(self, shape: ConformerShape, prefix: str, form: WeightForm) -> None:
        size, axis, name = shape.embed, heads_axis(shape.heads, form), shape.names.attention
        rows: tuple[str | None, str | None] = (axis, "embed")
        self.shape, self.size = shape, size // shape.heads
        self.q, self.k, self.v = (
            _bounded(shape, (size, size), rows, f"{prefix}.{name}.{part}_proj", form)
            for part in ("q", "k", "v")
        )
        positions = (f"{prefix}.{shape.names.positions}.weight",)
        self.positions = Linear(size, size, rows, positions, form=form)
        self.scale = weight(
            (self.size,), (None,), (f"{prefix}.{name}.per_dim_scale",), dtype=jnp.float32
        )
        columns: tuple[str | None, str | None] = ("embed", axis)
        self.post = _bounded(shape, (size, size), columns, f"{prefix}.{shape.names.post}", form)

    def __call__(self, x: jax.Array, there: jax.Array) -> jax.Array:
        """Maps f32[S * T, D] to the same; there: bool[S, T], places of the sounds."""
        shape, dtype = self.shape, self.q.linear.kernel.get_value().dtype
        sounds, places = there.shape
        wanted = self.size**-0.5 / math.log(2) * jax.nn.softplus(self.scale[...])
        parts = (sounds, places, shape.heads, self.size)
        q = (self.q(x).reshape(parts) * wanted[None, None, None]).astype(dtype)
        k, v = ((self.k(x) * shape.key_scale).astype(dtype), self.v(x).astype(dtype))
        count = -(-places // shape.chunk)
        fill = count * shape.chunk - places
        q = jnp.pad(q, ((0, 0), (0, fill), (0, 0), (0, 0)))
        q = q.reshape(sounds, count, shape.chunk, shape.heads, self.size)
        k, v, known = (
            self._near(part, fill) for part in (k.reshape(parts), v.reshape(parts), there)
        )
        seen = jnp.asarray(_visible(shape))[None, None, None] & known[:, None, :, None]
        scores = jnp.einsum("snwhq,snchq->shnwc", q, k, preferred_element_type=jnp.float32)
        scores = scores + self._shifted(q, dtype)
        scores = jnp.where(seen, shape.cap * jnp.tanh(scores / shape.cap), _UNSEEN)
        weights = jax.nn.softmax(scores, axis=-1).astype(dtype)
        made = jnp.einsum("shnwc,snchq->snwhq", weights, v, preferred_element_type=jnp.float32)
        made = made.reshape(sounds, count * shape.chunk, -1)[:, :places]
        return self.post(made.reshape(x.shape))

    def _near(self, x: jax.Array, fill: int) -> jax.Array:
        """Map [S, T, ...] to [S, N, C, ...]: of each chunk, its places and those around it."""
        shape = self.shape
        behind = fill + shape.future
        x = jnp.pad(x, ((0, 0), (shape.past, behind), *((0, 0),) * (x.ndim - 2)))
        starts = np.arange(0, x.shape[1] - shape.past - shape.future, shape.chunk)
        return x[:, starts[:, None] + np.arange(_reach(shape))]

    def _shifted(self, q: jax.Array, dtype: Any) -> jax.Array:
        """f32[S, H, N, W, C]: what queries [S, N, W, H, Q] score of the distances."""
        shape, reach = self.shape, _reach(self.shape)
        found = self.positions(jnp.asarray(_waves(shape))).astype(dtype)
        found = found.reshape(-1, shape.heads, self.size)
        made = jnp.einsum("snwhq,fhq->shnwf", q, found, preferred_element_type=jnp.float32)
        made = jnp.pad(made, (*((0, 0),) * 4, (0, reach + 1 - made.shape[-1])))
        flat = made.reshape(*made.shape[:3], -1)[..., : shape.chunk * reach]
        return flat.reshape(*made.shape[:4], reach)


def _reach(shape: ConformerShape) -> int:
    """Return C: places that the queries of a chunk read."""
    return shape.chunk + shape.past + shape.future


def _visible(shape: ConformerShape) -> np.ndarray:
    """bool[W, C]: which of the places around its chunk each place sees."""
    before = np.arange(shape.chunk)[:, None] + shape.past - np.arange(_reach(shape))[None]
    return (before <= shape.behind) & (-before <= shape.ahead)


def _waves(shape: ConformerShape) -> np.ndarray:
    """f32[F, D]: sines, then cosines, of relative positions from the furthest behind on."""
    first, last = shape.positions
    count = shape.embed // 2
    step = math.log(1e4) / max(count - 1, 1)
    inverse = np.exp(np.arange(count, dtype=np.float32) * np.float32(-step))
    angles = np.arange(first, last - 1, -1, dtype=np.float32)[:, None] * inverse[None]
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


class ClippedFeedForward(nnx.Module):
    """x + a share of norm(down(activation(up(norm(x)))))."""

    def __init__(self, shape: ConformerShape, prefix: str, form: WeightForm) -> None:
        size, self.shape = shape.embed, shape
        self.before = _norm(size, f"{prefix}.pre_layer_norm")
        up, down = f"{prefix}.ffw_layer_1", f"{prefix}.ffw_layer_2"
        self.up = _bounded(shape, (4 * size, size), ("ffw", "embed"), up, form)
        self.down = _bounded(shape, (size, 4 * size), ("embed", "ffw"), down, form)
        self.after = _norm(size, f"{prefix}.post_layer_norm")

    def __call__(self, x: jax.Array) -> jax.Array:
        clip, activation = self.shape.clip, self.shape.activation
        made = self.down(activation(self.up(self.before(jnp.clip(x, -clip, clip)))))
        return x + self.after(jnp.clip(made, -clip, clip)) * self.shape.share


class LightConvolution(nnx.Module):
    """x + a gated projection of x, each number of which is convolved over places before it."""

    def __init__(self, shape: ConformerShape, prefix: str, form: WeightForm) -> None:
        size, self.shape = shape.embed, shape
        self.before = _norm(size, f"{prefix}.pre_layer_norm", shape.epsilon)
        start, end = f"{prefix}.linear_start", f"{prefix}.linear_end"
        self.start = _bounded(shape, (2 * size, size), (None, "embed"), start, form)
        self.kernel = weight(
            (size, 1, shape.width),
            (None,) * 3,
            (f"{prefix}.depthwise_conv1d.weight",),
            dtype=jnp.float32,
            spread=0.02,
        )
        self.norm = _norm(size, f"{prefix}.conv_norm", shape.epsilon)
        self.end = _bounded(shape, (size, size), (None, "embed"), end, form)

    def __call__(self, x: jax.Array, sounds: int) -> jax.Array:
        """Maps f32[S * T, D] to the same."""
        opened, gate = jnp.split(self.start(self.before(x)), 2, axis=-1)
        made = (opened * jax.nn.sigmoid(gate)).reshape(sounds, -1, x.shape[-1])
        padded = jnp.pad(made, ((0, 0), (self.shape.width - 1, 0), (0, 0)))
        kernel, places = self.kernel[...], made.shape[1]
        made = sum(
            padded[:, at : at + places] * kernel[None, None, :, 0, at]
            for at in range(self.shape.width)
        )
        made = jnp.clip(jnp.asarray(made), -self.shape.clip, self.shape.clip).reshape(x.shape)
        return x + self.end(self.shape.activation(self.norm(made)))


class NearConformerLayer(nnx.Module):
    def __init__(self, shape: ConformerShape, prefix: str, form: WeightForm) -> None:
        names, size, self.clip = shape.names, shape.embed, shape.clip
        self.first = ClippedFeedForward(shape, f"{prefix}.{names.first_ffw}", form)
        self.before = _norm(size, f"{prefix}.{names.before_attention}")
        self.attention = NearAttention(shape, prefix, form)
        self.after = _norm(size, f"{prefix}.{names.after_attention}")
        self.convolution = LightConvolution(shape, f"{prefix}.lconv1d", form)
        self.last = ClippedFeedForward(shape, f"{prefix}.{names.last_ffw}", form)
        self.norm = _norm(size, f"{prefix}.{names.norm}")

    def __call__(self, x: jax.Array, there: jax.Array) -> jax.Array:
        """Maps f32[S * T, D] to the same; there: bool[S, T], places of the sounds."""
        x = self.first(x)
        mixed = self.attention(self.before(self._clipped(x)), there)
        x = x + self.after(self._clipped(mixed))
        # Convolutions look back: what is behind a sound changes nothing in it.
        x = self.convolution(jnp.where(there.reshape(-1, 1), x, 0.0), len(there))
        return self.norm(self._clipped(self.last(x)))

    def _clipped(self, x: jax.Array) -> jax.Array:
        return jnp.clip(x, -self.clip, self.clip)


class NearConformer(nnx.Module):
    """Maps frames of sounds to a vector for some of them each."""

    def __init__(self, shape: ConformerShape, blocks: Sequence[str], form: WeightForm) -> None:
        """blocks: names of the convolutions in front."""
        front, inputs, bins = f"{_TOWER}.subsample_conv_projection", 1, shape.bins
        self.embed, convolutions = shape.embed, list[NormedHalving]()
        for halving, name in zip(shape.halvings, blocks, strict=True):
            convolutions.append(NormedHalving(halving, inputs, f"{front}.{name}", shape, form))
            inputs = halving.channels
            bins = (bins + 2 - halving.kernel[1]) // halving.stride[1] + 1
        self.front = nnx.List(convolutions)
        inwards = (f"{front}.input_proj_linear.weight",)
        self.inwards = Linear(shape.embed, bins * inputs, ("embed", None), inwards, form=form)
        names = (f"{_TOWER}.{shape.names.layer}.{at}" for at in range(shape.layers))
        self.layers = nnx.List([NearConformerLayer(shape, name, form) for name in names])

    def __call__(
        self, frames: jax.Array, given: jax.Array, heard: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Maps f32[S, P, bins] to f32[S, T, D] and bool[S, T], which of them are of the sounds.

        given: i32[S], frames that there are, with what fills them; heard: those of the sounds.
        """
        x, ends = frames[..., None], given
        for convolution in self.front:
            heard = -(-heard // convolution.halving.stride[0])
            x, ends = convolution(x, ends)
        sounds, places = x.shape[:2]
        there = jnp.arange(places)[None] < heard[:, None]
        x = self.inwards(x.reshape(sounds * places, -1))
        for layer in self.layers:
            x = run_layer(layer, x, there)
        return x.reshape(sounds, places, self.embed), there


class OwnTokens(NamedTuple):
    """Tokens of the encoder's own vocabulary that stand in the place of a sound."""

    vocab: int
    soft: int  # vectors of a sound and of what fills it
    rows: tuple[int, ...]  # of the table: what fills a sound, and the end of one if it is there
    end: int | None  # the id of the end of a sound; None: it is the language model's

    @property
    def count(self) -> int:
        """Vectors in the place of a sound."""
        return self.soft + len(self.rows) - 1


class Gemma3nSounds(nnx.Module):
    """A MediaEncoder of Gemma 3n: a piece is a frame; its place is 1 if it is of the sound."""

    def __init__(
        self,
        shape: ConformerShape,
        ids: OwnTokens,
        reduction: int,
        embed: int,
        form: WeightForm,
    ) -> None:
        """reduction: places of which one is kept."""
        size = shape.embed
        self.ids, self.reduction, self.together = ids, reduction, shape.together
        self.tower = NearConformer(shape, ("conv_0", "conv_1"), form)
        self.embedder = Gemma3nEmbedder(
            ids.vocab, size, embed, _EMBEDDER, form, epsilon=shape.epsilon
        )

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        heard, there = self.tower(pieces, lengths, places[:, :, 0].sum(1))
        heard, there = heard[:, :: self.reduction], there[:, :: self.reduction]
        vectors = self.embedder.vectors(heard.reshape(-1, heard.shape[-1]))
        filling, *ends = self.embedder.tokens(self.ids.rows)
        vectors = vectors.reshape(*there.shape, -1)
        vectors = jnp.where(there[..., None], vectors, filling[None, None])
        return vectors.at[:, self.ids.soft].set(ends[0]) if ends else vectors


class Gemma4Sounds(nnx.Module):
    """A MediaEncoder of Gemma 4: a piece is a frame; its place is 1."""

    def __init__(self, shape: ConformerShape, width: int, embed: int, form: WeightForm) -> None:
        """width: of the conformer's vectors as the embedder takes them."""
        self.tower = NearConformer(shape, ("layer0", "layer1"), form)
        kernel, bias = dense(f"{_TOWER}.output_proj")
        self.out = Linear(width, shape.embed, ("embed", None), kernel, form=form, bias=bias)
        self.norm = UnitNorm(shape.epsilon)
        projection = (f"{_EMBEDDER}.embedding_projection.weight",)
        self.projection = Linear(embed, width, ("embed", None), projection, form=form)

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        frames = places[:, :, 0].sum(1)
        heard, _ = self.tower(pieces, frames, frames)
        vectors = self.projection(self.norm(self.out(heard.reshape(-1, heard.shape[-1]))))
        return vectors.reshape(*heard.shape[:2], -1)
