"""VITS: a text encoder, durations drawn from a flow of splines, latent frames, HiFi-GAN.

Source: Kim et al. 2021 (arXiv:2106.06103) and, for Meta's checkpoints of 1,100 languages, Pratap et
al. 2023 (arXiv:2305.13516); names and config keys are those of Hugging Face's `VitsModel`.

Functions are pure; `weights` are the `arrays` of a `Vits`. They compute one text, whose arrays are
padded: the padding is kept at zero before every convolution, so that it changes nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from model_server.models.audio.vits_config import VitsConfig
from model_server.models.audio.vits_weights import LayerArrays, Tree
from model_server.models.audio.whisper_weights import Norm

_STACK_EPSILON = 1e-5  # of the norms of separable stacks, whatever the others have
_LAST_SLOPE = 0.01  # of the decoder's last rectifier
_LEAST_BIN = 1e-3  # width and height of a spline's bins
_LEAST_DERIVATIVE = 1e-3


class ReadText(NamedTuple):
    """The encoder's output for a text: the latent distribution and the length of each token."""

    means: jax.Array  # f32[T, C], of the latent frames
    log_deviations: jax.Array  # f32[T, C]
    frames: jax.Array  # i32[T], of each token
    total: jax.Array  # i32[], at least 1


def read_text(
    config: VitsConfig,
    weights: Tree,
    tokens: jax.Array,
    length: jax.Array,
    speaker: jax.Array,
    noise: jax.Array,
    speed: jax.Array,
    most: int,
) -> ReadText:
    """Encode tokens i32[T], of which `length` are text, and give each its frames.

    speaker: i32[]. noise: f32[T, 2], standard normal. speed: f32[], 1: as trained. A total above
    `most` says only that there are more.
    """
    inside = (jnp.arange(len(tokens)) < length)[:, None]  # bool[T, 1]
    x = _encoded(config, weights, tokens, inside)
    prior = _convolved(x, weights["prior"]) * inside
    durations, voice = weights["durations"], voice_of(weights, speaker)
    predict = _drawn_durations if config.duration.stochastic else _plain_durations
    log_frames = predict(config, durations, x, inside, voice, noise * config.duration_noise)
    frames = jnp.ceil(jnp.where(inside[:, 0], jnp.exp(log_frames) * (1 / speed), 0.0))
    # Numbers that are not finite count as too many.
    frames = jnp.where(frames <= most, frames, most + 1).astype(jnp.int32)
    means, log_deviations = jnp.split(prior, 2, axis=1)
    return ReadText(means, log_deviations, frames, jnp.maximum(frames.sum(), 1))


def spoken(
    config: VitsConfig, weights: Tree, text: ReadText, speaker: jax.Array, noise: jax.Array
) -> jax.Array:
    """Return the samples f32[F * frame] of a text's latent frames, of which `total` are sound.

    noise: f32[F, C], standard normal.
    """
    voice = voice_of(weights, speaker)
    at = jnp.arange(len(noise))
    ends = jnp.cumsum(text.frames)
    token = jnp.minimum(jnp.searchsorted(ends, at, side="right"), len(ends) - 1)
    lasting = (at < ends[-1])[:, None]  # no token lasts as long as the least total
    means, deviations = (
        jnp.where(lasting, each[token], 0.0) for each in (text.means, text.log_deviations)
    )
    inside = (at < text.total)[:, None]
    latents = means + noise * jnp.exp(deviations) * config.noise
    for flow in reversed(weights["flows"]):
        latents = _uncoupled(config, flow, latents[:, ::-1], inside, voice)
    return _decoded(config, weights["decoder"], latents * inside, text.total, voice)


def voice_of(weights: Tree, speaker: jax.Array) -> jax.Array | None:
    """Return f32[1, E]; None: there is one speaker."""
    return None if weights["speakers"] is None else weights["speakers"][speaker][None]


def _encoded(config: VitsConfig, weights: Tree, tokens: jax.Array, inside: jax.Array) -> jax.Array:
    x = weights["table"][tokens] * math.sqrt(config.embed) * inside
    for layer in weights["layers"]:
        x = _normed(x + _attended(config, layer, x, inside), layer["norm"], config.epsilon)
        inner = config.activation(_convolved(x * inside, layer["up"]))
        fed = _convolved(inner * inside, layer["down"]) * inside
        x = _normed(x + fed, layer["ffw_norm"], config.epsilon)
    return x * inside


def _attended(config: VitsConfig, layer: Tree, x: jax.Array, inside: jax.Array) -> jax.Array:
    """Attend to all tokens; those within the window have embeddings by their distance."""
    count, heads = len(x), config.heads
    head = config.embed // heads
    q, k, v = (_convolved(x, layer[name]).reshape(count, heads, head) for name in "qkv")
    q = q * head**-0.5
    near = _near(config.window, count)  # bool[T, S, R]
    to_near = _einsum("thq,rq->htr", q, layer["near_keys"][0])
    scores = _einsum("thq,shq->hts", q, k) + _einsum("htr,tsr->hts", to_near, near)
    shares = jax.nn.softmax(jnp.where(inside[:, 0], scores, -jnp.inf))
    of_near = _einsum("hts,tsr->htr", shares, near)
    mixed = _einsum("hts,shq->thq", shares, v)
    mixed += _einsum("htr,rq->thq", of_near, layer["near_values"][0])
    return _convolved(mixed.reshape(count, config.embed), layer["out"])


def _near(window: int, count: int) -> jax.Array:
    """f32[T, S, R]: 1 where key S is at the R-th of the distances -window to window of query T."""
    at = jnp.arange(count)
    distance = at[None, :] - at[:, None]
    return (distance[:, :, None] == jnp.arange(-window, window + 1)).astype(jnp.float32)


def _drawn_durations(
    config: VitsConfig,
    weights: Tree,
    x: jax.Array,
    inside: jax.Array,
    voice: jax.Array | None,
    noise: jax.Array,
) -> jax.Array:
    """Return log frames f32[T] by the inverse of a flow from them to noise f32[T, 2]."""
    x = _conditioned(_convolved(x, weights["before"]), weights["speaker"], voice)
    x = _convolved(_stacked(weights["stack"], x, inside), weights["after"]) * inside
    for flow in reversed(weights["splines"]):
        noise = _unbent(config, flow, noise[:, ::-1], inside, x)
    affine = weights["affine"]
    made = (noise[:, ::-1] - affine.translate[:, 0]) * jnp.exp(-affine.log_scale[:, 0])
    return (made * inside)[:, 0]


def _plain_durations(
    config: VitsConfig,
    weights: Tree,
    x: jax.Array,
    inside: jax.Array,
    voice: jax.Array | None,
    noise: jax.Array,
) -> jax.Array:
    """Return log frames f32[T]; the noise changes nothing."""
    x = _conditioned(x, weights["speaker"], voice)
    for name in ("first", "second"):
        x = jax.nn.relu(_convolved(x * inside, weights[name]))
        x = _normed(x, weights[f"{name}_norm"], config.epsilon)
    return (_convolved(x * inside, weights["after"]) * inside)[:, 0]


def _stacked(weights: Tree, x: jax.Array, inside: jax.Array) -> jax.Array:
    names = ("apart", "apart_norms", "mixed", "mixed_norms")
    for at, layer in enumerate(zip(*(weights[name] for name in names), strict=True)):
        apart, apart_norm, mixed, mixed_norm = layer
        inner = _apart(x * inside, apart, apart.kernel.shape[-1] ** at)
        inner = jax.nn.gelu(_normed(inner, apart_norm, _STACK_EPSILON), approximate=False)
        inner = _normed(_convolved(inner, mixed), mixed_norm, _STACK_EPSILON)
        x = x + jax.nn.gelu(inner, approximate=False)
    return x * inside


def _apart(x: jax.Array, layer: LayerArrays, dilation: int) -> jax.Array:
    """Convolve each channel alone."""
    taps = layer.kernel.shape[-1]
    reach = (taps - 1) * dilation // 2
    padded = jnp.pad(x, ((reach, reach), (0, 0)))
    made = jnp.zeros_like(x) if layer.bias is None else layer.bias
    for tap in range(taps):
        made = made + padded[tap * dilation : tap * dilation + len(x)] * layer.kernel[:, 0, tap]
    return made


def _unbent(
    config: VitsConfig, weights: Tree, pairs: jax.Array, inside: jax.Array, x: jax.Array
) -> jax.Array:
    """Invert one spline flow of pairs f32[T, 2]; x: what the splines are made for."""
    sizes, (kept, bent) = config.duration, jnp.split(pairs, 2, axis=1)
    inner = _stacked(weights["stack"], _convolved(kept, weights["before"]) + x, inside)
    knots = _convolved(inner, weights["after"]) * inside
    widths, heights = (
        part / math.sqrt(config.embed)
        for part in (knots[:, : sizes.bins], knots[:, sizes.bins : 2 * sizes.bins])
    )
    made = unsplined(bent[:, 0], widths, heights, knots[:, 2 * sizes.bins :], sizes.tail)
    return jnp.concatenate([kept, made[:, None]], 1) * inside


def unsplined(
    y: jax.Array, widths: jax.Array, heights: jax.Array, derivatives: jax.Array, tail: float
) -> jax.Array:
    """Invert rational quadratic splines (Durkan et al. 2019, arXiv:1906.04032) at y f32[T].

    widths, heights: f32[T, N], of the bins from -tail to tail, not normalised; derivatives:
    f32[T, N - 1], between the bins, likewise. Beyond the tails y is returned.
    """
    x_edges, y_edges = _edges(widths, tail), _edges(heights, tail)
    ends = jnp.full((len(y), 1), math.log(math.exp(1 - _LEAST_DERIVATIVE) - 1))
    slopes = jnp.concatenate([ends, derivatives, ends], 1)
    slopes = _LEAST_DERIVATIVE + jax.nn.softplus(slopes)
    inside = (y >= -tail) & (y <= tail)
    kept = jnp.clip(y, -tail, tail)
    bins = widths.shape[1]
    index = jnp.clip((kept[:, None] >= y_edges).sum(1) - 1, 0, bins - 1)

    def of(values: jax.Array, step: int = 0) -> jax.Array:
        return jnp.take_along_axis(values, index[:, None] + step, 1)[:, 0]

    left, width = of(x_edges), of(x_edges, 1) - of(x_edges)
    bottom, height = of(y_edges), of(y_edges, 1) - of(y_edges)
    slope, before, after = height / width, of(slopes), of(slopes, 1)
    bend = (kept - bottom) * (before + after - 2 * slope)
    a = height * (slope - before) + bend
    b = height * before - bend
    c = -slope * (kept - bottom)
    root = 2 * c / (-b - jnp.sqrt(jnp.maximum(b * b - 4 * a * c, 0.0)))
    return jnp.where(inside, root * width + left, y)


def _edges(sizes: jax.Array, tail: float) -> jax.Array:
    """f32[T, N + 1]: where bins begin and end, from -tail to tail."""
    count = sizes.shape[1]
    shares = _LEAST_BIN + (1 - _LEAST_BIN * count) * jax.nn.softmax(sizes)
    inner = 2 * tail * jnp.cumsum(shares, 1)[:, :-1] - tail
    ends = jnp.full((len(sizes), 1), tail)
    return jnp.concatenate([-ends, inner, ends], 1)


def _uncoupled(
    config: VitsConfig,
    weights: Tree,
    latents: jax.Array,
    inside: jax.Array,
    voice: jax.Array | None,
) -> jax.Array:
    """Invert one coupling layer of latent frames f32[F, C]."""
    kept, moved = jnp.split(latents, 2, axis=1)
    x = _convolved(kept, weights["before"]) * inside
    hidden = _gated(config, weights, x, inside, voice)
    mean = _convolved(hidden, weights["after"]) * inside
    return jnp.concatenate([kept, (moved - mean) * inside], 1)


def _gated(
    config: VitsConfig, weights: Tree, x: jax.Array, inside: jax.Array, voice: jax.Array | None
) -> jax.Array:
    """Run the gated convolutions of a coupling layer on f32[F, D]; return their sum f32[F, D]."""
    total, embed = jnp.zeros_like(x), config.embed
    told = None if voice is None else _convolved(voice, weights["speaker"])  # f32[1, 2 D L]
    for at, (gate, output) in enumerate(zip(weights["gates"], weights["outputs"], strict=True)):
        inner = _convolved(x, gate, config.wavenet_dilation**at)
        if told is not None:
            inner = inner + told[:, 2 * embed * at : 2 * embed * (at + 1)]
        acts = jnp.tanh(inner[:, :embed]) * jax.nn.sigmoid(inner[:, embed:])
        made = _convolved(acts, output)
        if at + 1 < config.wavenet_layers:
            x = (x + made[:, :embed]) * inside
        total = total + made[:, -embed:]
    return total * inside


def _decoded(
    config: VitsConfig, weights: Tree, x: jax.Array, total: jax.Array, voice: jax.Array | None
) -> jax.Array:
    """Map latent frames f32[F, C], of which `total` are sound, to samples f32[F * frame]."""
    x = _conditioned(_convolved(x, weights["before"]), weights["speaker"], voice)
    blocks, count = weights["residuals"], len(config.residuals)
    inside = _within(x, total)
    for at, (layer, (rate, _)) in enumerate(
        zip(weights["upsamplings"], config.upsamplings, strict=True)
    ):
        x = _upsampled(_leaky(x, config.slope) * inside, layer, rate)
        total = total * rate
        inside = _within(x, total)
        mine = zip(blocks[at * count : (at + 1) * count], config.residuals, strict=True)
        parts = [_refined(block, sizes.dilations, x, inside, config.slope) for block, sizes in mine]
        x = sum(parts[1:], parts[0]) / count
    samples = _convolved(_leaky(x, _LAST_SLOPE) * inside, weights["after"])
    return jnp.tanh(samples[:, 0])


def _refined(
    weights: Tree, dilations: tuple[int, ...], x: jax.Array, inside: jax.Array, slope: float
) -> jax.Array:
    layers = zip(weights["dilated"], weights["plain"], dilations, strict=True)
    for dilated, plain, dilation in layers:
        inner = _convolved(_leaky(x, slope) * inside, dilated, dilation)
        x = x + _convolved(_leaky(inner, slope) * inside, plain)
    return x


def _upsampled(x: jax.Array, layer: LayerArrays, rate: int) -> jax.Array:
    """f32[F, in] to f32[F * rate, out] by a transposed convolution; kernel: [in, out, W]."""
    taps = layer.kernel.shape[-1]
    side = taps - 1 - (taps - rate) // 2
    made = _conv(x, layer.kernel[:, :, ::-1], "IOW", (side, side), stretch=rate)
    return made if layer.bias is None else made + layer.bias


def _convolved(x: jax.Array, layer: LayerArrays, dilation: int = 1) -> jax.Array:
    """f32[T, in] to f32[T, out], as if zeros stood before and after; kernel: [out, in, W], or a
    matrix [out, in]."""
    kernel, bias = layer
    if kernel.ndim == 2 or kernel.shape[-1] == 1:
        made = _einsum("ti,oi->to", x.astype(kernel.dtype), kernel.reshape(kernel.shape[:2]))
    else:
        reach = (kernel.shape[-1] - 1) * dilation
        made = _conv(x, kernel, "OIW", (reach // 2, reach - reach // 2), dilation)
    return made if bias is None else made + bias


def _conv(
    x: jax.Array,
    kernel: jax.Array,
    order: str,
    pads: tuple[int, int],
    dilation: int = 1,
    stretch: int = 1,
) -> jax.Array:
    made = lax.conv_general_dilated(
        x[None].astype(kernel.dtype),
        kernel,
        (1,),
        (pads,),
        lhs_dilation=(stretch,),
        rhs_dilation=(dilation,),
        dimension_numbers=("NWC", order, "NWC"),
        precision=lax.Precision.HIGHEST if kernel.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )
    return made[0]


def _einsum(spelled: str, a: jax.Array, b: jax.Array) -> jax.Array:
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return jnp.einsum(spelled, a, b, precision=precision, preferred_element_type=jnp.float32)


def _conditioned(x: jax.Array, layer: LayerArrays | None, voice: jax.Array | None) -> jax.Array:
    return x if layer is None or voice is None else x + _convolved(voice, layer)


def _within(x: jax.Array, total: jax.Array) -> jax.Array:
    """bool[T, 1] of the rows of x that are sound."""
    return (jnp.arange(len(x)) < total)[:, None]


def _leaky(x: jax.Array, slope: float) -> jax.Array:
    return jnp.where(x > 0, x, slope * x)


def _normed(x: jax.Array, norm: Norm, epsilon: float) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + epsilon) * norm.scale + norm.bias
