"""The layer of every tower: attention among the pieces of an input, then a feed-forward.

And the convolutions of conformers (Gulati et al. 2020, arXiv:2005.08100).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.kernels.whole import attend_among
from model_server.models.config_keys import ConfigKeys
from model_server.models.layers.activations import Activation
from model_server.models.layers.attention import AttentionSources
from model_server.models.layers.decoder import set_rows_of
from model_server.models.layers.feed_forward import FeedForward
from model_server.models.layers.layers import Branches, Linear, LiveRows, live_of, project
from model_server.models.layers.rope import Rotary
from model_server.models.weights.weight import WeightForm, weight
from sax.errors import CheckpointError

_THETA = 10000.0
_ROPE = ("axial", "default", None)  # kinds of rope, which older files do not name

# Keys and values of an image are few and its scores many: a few queries are computed after the
# other, so that the scores take little memory however large an image is.
QUERIES = 256  # of one product


def attend(
    q: jax.Array,  # [S, P, H, Q]
    k: jax.Array,  # [S, P, H, Q]
    v: jax.Array,  # [S, P, H, Q]
    lengths: jax.Array,  # i32[S]: pieces of each image; what is behind them is not seen
    scale: float | None = None,  # of scores; None: 1 / sqrt(Q)
    live: jax.Array | None = None,  # None: by XLA; else as of `attend_among`
) -> jax.Array:
    """Return f32[S, P, H, Q]; products in the dtype of the inputs, accumulated in float32."""
    if live is not None:
        return attend_among(q, k, v, lengths, live, scale=scale)
    images, pieces, heads, size = q.shape
    by = size**-0.5 if scale is None else scale
    there = jnp.arange(pieces)[None] < lengths[:, None]
    if pieces <= QUERIES:
        return _mixed(q, k, v, there, by)
    parts = -(-pieces // QUERIES)
    padded = jnp.pad(q, ((0, 0), (0, parts * QUERIES - pieces), (0, 0), (0, 0)))
    queries = padded.reshape(images, parts, QUERIES, heads, size).swapaxes(0, 1)
    made = _part_by_part(lambda some: _mixed(some, k, v, there, by), queries)
    return made.swapaxes(0, 1).reshape(images, -1, heads, size)[:, :pieces]


def _part_by_part(mix: Callable[[jax.Array], jax.Array], queries: jax.Array) -> jax.Array:
    """Return f32[N, ...], `mix` of each of N parts, which are written over the queries.

    `jax.lax.map` would write into zeros that depend on nothing, and XLA prepares those of all
    layers on CPUs before the first one: with 34 layers, 2.5 GB for one of Llama 4's largest images.
    """

    def one(index: jax.Array, held: jax.Array) -> jax.Array:
        part = jax.lax.dynamic_index_in_dim(held, index, keepdims=False)
        made = mix(part.astype(queries.dtype))
        return jax.lax.dynamic_update_index_in_dim(held, made, index, 0)

    return jax.lax.fori_loop(0, len(queries), one, queries.astype(jnp.float32))


def _mixed(q: jax.Array, k: jax.Array, v: jax.Array, there: jax.Array, scale: float) -> jax.Array:
    """f32[S, C, H, Q] of queries [S, C, H, Q]; there: bool[S, P]."""
    scores = jnp.einsum("schq,sphq->shcp", q, k, preferred_element_type=jnp.float32)
    scores = jnp.where(there[:, None, None], scores * scale, -1e30)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("shcp,sphq->schq", weights, v, preferred_element_type=jnp.float32)


def axial_theta(keys: ConfigKeys, family: str) -> float:
    """Return the base of the rope over rows and columns. Raises CheckpointError."""
    given = keys.get("rope_parameters", {})
    known = isinstance(given, Mapping) and set(given) <= {"rope_theta", "rope_type"}
    if not known or given.get("rope_type") not in _ROPE:
        raise CheckpointError(
            f"vision_config has rope_parameters = {given!r}; the {family} family supports a "
            "rope_theta and the rope_type axial"
        )
    return float(given.get("rope_theta") or keys.number("rope_theta", _THETA))


def heads_axis(heads: int, form: WeightForm) -> str | None:
    """Return the axis over which heads are divided; None: they do not divide evenly."""
    return "heads" if heads % form.layout.shards("heads") == 0 else None


class TowerAttention(nnx.Module):
    """Pieces of an input see each other; queries and keys are rotated, if there is a rotation."""

    def __init__(
        self,
        embed: int,
        heads: int,
        sources: AttentionSources,
        form: WeightForm,
        *,
        axis: str | None = None,
        kv_heads: int | None = None,
    ) -> None:
        """axis: of the projections; None: of heads, if they divide evenly over the devices of the
        model axis; else each computes all. kv_heads: of keys and values; None: as many.
        """
        self.heads, kv_heads = heads, kv_heads or heads
        axis = axis or heads_axis(kv_heads, form)
        narrow = embed // heads * kv_heads
        self.qkv = Branches(
            [embed, narrow, narrow],
            embed,
            [(axis, "embed")] * 3,
            [sources.q, sources.k, sources.v],
            form=form,
            biases=sources.biases,
        )
        self.out = Linear(
            embed, embed, ("embed", axis), sources.out, form=form, bias=sources.out_bias
        )
        self.live: LiveRows = nnx.data(None)

    def __call__(self, x: jax.Array, seen: jax.Array, rotation: Rotary | None = None) -> jax.Array:
        """Maps f32[S * P, D] to the same; seen: [S, ...], as `mixed` takes it."""
        dtype = self.out.kernel.get_value().dtype
        q, k, v = self.split(x)
        shared = self.heads // k.shape[1]
        if rotation is not None:
            q, k = rotation(q), rotation(k)
        if shared > 1:
            k, v = jnp.repeat(k, shared, axis=1), jnp.repeat(v, shared, axis=1)
        q, k, v = (
            part.astype(dtype).reshape(seen.shape[0], -1, *part.shape[1:]) for part in (q, k, v)
        )
        return self.out(self.mixed(q, k, v, seen).reshape(x.shape))

    def split(self, x: jax.Array) -> list[jax.Array]:
        """Return queries, keys and values by heads, each f32[S * P, heads, Q]."""
        size = x.shape[-1] // self.heads
        return [part.reshape(x.shape[0], -1, size) for part in self.branches(x)]

    def branches(self, x: jax.Array) -> Sequence[jax.Array]:
        """Return queries, keys and values, each f32[S * P, heads * Q]."""
        return self.qkv(x)

    def there(self, seen: jax.Array, pieces: int) -> jax.Array | None:
        """Return bool[S, P]: which pieces are no padding; None: it is not known."""
        return jnp.arange(pieces)[None] < seen[:, None]

    def mixed(self, q: jax.Array, k: jax.Array, v: jax.Array, seen: jax.Array) -> jax.Array:
        """Return f32[S, P, H, Q]; seen: i32[S], pieces of each input, which all see each other."""
        return attend(q, k, v, seen, live=live_of(self))


class TowerLayer(nnx.Module):
    """x + attention(norm(x)), then x + ffw(norm(x))."""

    def __init__(
        self,
        before_attention: nnx.Module,
        attention: TowerAttention,
        before_ffw: nnx.Module,
        ffw: nnx.Module,
    ) -> None:
        self.before_attention = before_attention
        self.attention = attention
        self.before_ffw = before_ffw
        self.ffw = ffw

    def __call__(self, x: jax.Array, seen: jax.Array, rotation: Rotary | None = None) -> jax.Array:
        self.leave_padding(x, seen)
        x = x + self.attention(self.before_attention(x), seen, rotation)
        return x + self.ffw(self.before_ffw(x))

    def leave_padding(self, x: jax.Array, seen: jax.Array) -> None:
        """Let the native kernels skip the padding of images, which they were to compute."""
        live = live_of(self.attention)
        if live is not None and not live.size:
            there = self.attention.there(seen, len(x) // len(seen))
            if there is not None:
                set_rows_of(self, there.reshape(-1))


class ScaledTowerLayer(TowerLayer):
    """A layer that multiplies what its halves add (Touvron et al. 2021, arXiv:2103.17239)."""

    def __init__(
        self,
        before_attention: nnx.Module,
        attention: TowerAttention,
        before_ffw: nnx.Module,
        ffw: nnx.Module,
        embed: int,
        scales: Sequence[str],
    ) -> None:
        """scales: names of the two tensors f32[embed]."""
        super().__init__(before_attention, attention, before_ffw, ffw)
        self.of_attention, self.of_ffw = (
            weight((embed,), (None,), (name,), dtype=jnp.float32, spread=0.1) for name in scales
        )

    def __call__(self, x: jax.Array, seen: jax.Array, rotation: Rotary | None = None) -> jax.Array:
        self.leave_padding(x, seen)
        mixed = self.attention(self.before_attention(x), seen, rotation)
        x = x + mixed * self.of_attention[...][None]
        return x + self.ffw(self.before_ffw(x)) * self.of_ffw[...][None]


class PointwiseConvolution(nnx.Module):
    """A product with each frame, stored as a convolution of width 1."""

    def __init__(self, outputs: int, inputs: int, name: str, form: WeightForm) -> None:
        shape = (outputs, inputs, 1)
        self.kernel = weight(
            shape, (None, "embed", None), (f"{name}.weight",), dtype=form.dtype, spread=0.02
        )
        bias = (f"{name}.bias",)
        self.bias = weight((outputs,), (None,), bias, dtype=jnp.float32, spread=0.0)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f32[T, in] to f32[T, out]."""
        return project(x, self.kernel.get_value()[:, :, 0]) + self.bias[...][None]


class DepthwiseConvolution(nnx.Module):
    """Each channel's weighted sum of the frames around each; those outside are zeros."""

    def __init__(self, channels: int, width: int, first: int, name: str, *, biased: bool) -> None:
        """width: K. first: frames before each that it sees."""
        shape = (channels, 1, width)
        self.kernel = weight(
            shape, (None,) * 3, (f"{name}.weight",), dtype=jnp.float32, spread=0.02
        )
        self.biased = biased
        if biased:
            bias = (f"{name}.bias",)
            self.bias = weight((channels,), (None,), bias, dtype=jnp.float32, spread=0.0)
        self.first = first

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f32[S, P, C] to the same."""
        taps, count = self.kernel[...][:, 0], x.shape[1]
        padded = jnp.pad(x, ((0, 0), (self.first, taps.shape[1] - 1 - self.first), (0, 0)))
        made = jnp.zeros_like(x)
        for at in range(taps.shape[1]):
            made += padded[:, at : at + count] * taps[None, None, :, at]
        return made + self.bias[...][None, None] if self.biased else made


def before(x: jax.Array, ends: jax.Array) -> jax.Array:
    """f32[N, T, ...] with zeros from place i32[N] on."""
    there = jnp.arange(x.shape[1])[None] < ends[:, None]
    return jnp.where(there.reshape(*there.shape, *(1,) * (x.ndim - 2)), x, 0.0)


def dense(name: str) -> tuple[tuple[str], tuple[str]]:
    """Return the names of a projection's kernel and bias, or of a norm's."""
    return (f"{name}.weight",), (f"{name}.bias",)


def plain_ffw(
    embed: int, ffw: int, up: str, down: str, activation: Activation, form: WeightForm
) -> FeedForward:
    """Return a feed-forward of two projections with biases, of these names."""
    (up_kernel, up_bias), (down_kernel, down_bias) = dense(up), dense(down)
    return FeedForward(
        embed,
        ffw,
        up=up_kernel,
        down=down_kernel,
        activation=activation,
        form=form,
        biases=(up_bias, down_bias),
    )
