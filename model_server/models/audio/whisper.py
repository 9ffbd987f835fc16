"""Whisper: an encoder of spectrograms, and a decoder that attends to it and to its own tokens.

Source: Radford et al. 2022 (arXiv:2212.04356); names and config keys are those of Hugging Face's
`WhisperForConditionalGeneration`.

Functions are pure; `weights` are the `arrays` of a `Whisper`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from model_server.models.audio.audio_recipe import (
    AUDIO_DEFAULTS,
    AudioClass,
    AudioRecipe,
    serving_of,
)
from model_server.models.audio.whisper_config import WhisperConfig
from model_server.models.audio.whisper_weights import LinearArrays, Norm, Tree, Whisper
from model_server.models.weights.weight import WeightForm, blueprint

_EPSILON = 1e-5  # of every norm
_DIMENSIONS = ("NWC", "OIW", "NWC")


class WhisperCache(NamedTuple):
    """Keys and values of every layer; of the encoder's positions S, or of the decoder's C."""

    keys: jax.Array  # [L, B, S, H, Q]
    values: jax.Array  # [L, B, S, H, Q]


def encode(config: WhisperConfig, weights: Tree, mels: jax.Array, together: int = 1) -> jax.Array:
    """Map spectrograms f32[B, frames, bins] to states f32[B, S, D].

    together: rows that attend at once; of a batch that is divided over devices, one on each.
    """
    first, second = weights["convolutions"]
    # Whatever the layers' own activation is.
    x = jax.nn.gelu(convolved(mels, first, 1), approximate=False)
    x = jax.nn.gelu(convolved(x, second, 2), approximate=False)
    x = x + weights["places"].astype(jnp.float32)

    def layer(x: jax.Array, held: Tree) -> tuple[jax.Array, None]:
        x = x + _attend_all(config, held["attention"], _normed(x, held["norm"]), together)
        return _fed_forward(config, held, x), None

    x, _ = lax.scan(layer, x, weights["encoder"])
    return _normed(x, weights["encoder_norm"])


def crossed(config: WhisperConfig, weights: Tree, states: jax.Array) -> WhisperCache:
    """Return what each layer of the decoder reads of the encoder's states f32[B, S, D]."""
    heads, dtype = config.heads[1], weights["table"].dtype

    def layer(carry: None, cross: Tree) -> tuple[None, WhisperCache]:
        made = (_split(_product(states, cross[name]), heads) for name in ("k", "v"))
        return carry, WhisperCache(*(each.astype(dtype) for each in made))

    _, made = lax.scan(layer, None, weights["decoder"]["cross"])
    return made


def empty_cache(config: WhisperConfig, dtype: Any, rows: int) -> WhisperCache:
    head = config.embed // config.heads[1]
    shape = (config.layers[1], rows, config.context, config.heads[1], head)
    return WhisperCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))


def decode(
    config: WhisperConfig,
    weights: Tree,
    cross: WhisperCache,
    cache: WhisperCache,
    tokens: jax.Array,
    positions: jax.Array,
) -> tuple[jax.Array, WhisperCache]:
    """Read tokens i32[B, T] at positions i32[B, T]; return vectors f32[B, T, D] and the cache.

    A token sees what the cache holds up to its own position.
    """
    x = weights["table"][tokens].astype(jnp.float32)
    x = x + weights["positions"][positions].astype(jnp.float32)
    rows = jnp.arange(len(tokens))[:, None]
    seen = jnp.arange(config.context) <= positions[:, :, None]  # bool[B, T, C]

    def layer(carry: Any, held: Any) -> tuple[Any, None]:
        x, cache = carry
        index, held, cross = held
        cache = _written(config, held["attention"], cache, (index, rows, positions), x, held)
        own = WhisperCache(cache.keys[index], cache.values[index])
        x = x + _attend(config, held["attention"], _normed(x, held["norm"]), own, seen)
        x = x + _attend(config, held["cross"], _normed(x, held["cross_norm"]), cross, None)
        return (_fed_forward(config, held, x), cache), None

    layers = (jnp.arange(config.layers[1]), weights["decoder"], cross)
    (x, cache), _ = lax.scan(layer, (x, cache), layers)
    return _normed(x, weights["decoder_norm"]), cache


def logits(weights: Tree, x: jax.Array) -> jax.Array:
    """Map vectors f32[..., D] to logits f32[..., V]."""
    head = weights["table"] if weights["head"] is None else weights["head"]
    return _product(x, LinearArrays(head, None))


def _written(
    config: WhisperConfig,
    attention: Tree,
    cache: WhisperCache,
    place: Any,
    x: jax.Array,
    held: Tree,
) -> WhisperCache:
    """Return the cache with keys and values of x f32[B, T, D] at a layer, rows and positions."""
    normed = _normed(x, held["norm"])
    keys, values = (
        _split(_product(normed, attention[name]), config.heads[1]).astype(cache.keys.dtype)
        for name in ("k", "v")
    )
    return WhisperCache(cache.keys.at[place].set(keys), cache.values.at[place].set(values))


def _attend(
    config: WhisperConfig,
    attention: Tree,
    x: jax.Array,
    held: WhisperCache,
    seen: jax.Array | None,
) -> jax.Array:
    """Attend from f32[B, T, D] to [B, S, H, Q]; seen: bool[B, T, S], None: everything."""
    queries = _split(_product(x, attention["q"]), config.heads[1]).astype(held.keys.dtype)
    scores = _einsum("bthq,bshq->bhts", queries, held.keys) * queries.shape[-1] ** -0.5
    if seen is not None:
        scores = jnp.where(seen[:, None], scores, -jnp.inf)
    shares = jax.nn.softmax(scores).astype(held.values.dtype)
    mixed = _einsum("bhts,bshq->bthq", shares, held.values)
    return _product(mixed.reshape(x.shape), attention["out"])


def _attend_all(config: WhisperConfig, attention: Tree, x: jax.Array, together: int) -> jax.Array:
    """Attend from every position of f32[B, S, D] to every other, some rows after the others: scores
    of all rows would take gigabytes."""
    heads, dtype = config.heads[0], attention["q"].kernel.dtype

    def in_turns(name: str) -> jax.Array:  # [B / together, together, S, H, Q]
        made = _split(_product(x, attention[name]), heads).astype(dtype)
        return made.reshape(together, -1, *made.shape[1:]).swapaxes(0, 1)

    def turn(given: Sequence[jax.Array]) -> jax.Array:
        queries, keys, values = given
        scores = _einsum("bthq,bshq->bhts", queries, keys) * queries.shape[-1] ** -0.5
        return _einsum("bhts,bshq->bthq", jax.nn.softmax(scores).astype(dtype), values)

    mixed = lax.map(turn, [in_turns(name) for name in "qkv"])
    return _product(mixed.swapaxes(0, 1).reshape(x.shape), attention["out"])


def _fed_forward(config: WhisperConfig, held: Tree, x: jax.Array) -> jax.Array:
    inner = config.activation(_product(_normed(x, held["ffw_norm"]), held["up"]))
    return x + _product(inner, held["down"])


def _normed(x: jax.Array, norm: Norm) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + _EPSILON) * norm.scale + norm.bias


def _product(x: jax.Array, linear: LinearArrays) -> jax.Array:
    """f32[..., in] to f32[..., out]."""
    made = _einsum("...i,oi->...o", x.astype(linear.kernel.dtype), linear.kernel)
    return made if linear.bias is None else made + linear.bias


def _einsum(spelled: str, a: jax.Array, b: jax.Array) -> jax.Array:
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return jnp.einsum(spelled, a, b, precision=precision, preferred_element_type=jnp.float32)


def convolved(x: jax.Array, linear: LinearArrays, stride: int) -> jax.Array:
    """f32[B, W, in] to f32[B, W / stride, out]; kernel: [out, in, 3]."""
    kernel, bias = linear
    assert bias is not None, "every convolution has one"
    made = lax.conv_general_dilated(
        x.astype(kernel.dtype),
        kernel,
        (stride,),
        ((1, 1),),
        dimension_numbers=_DIMENSIONS,
        precision=lax.Precision.HIGHEST if kernel.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )
    return made + bias[None, None]


def _split(x: jax.Array, heads: int) -> jax.Array:
    """[..., D] to [..., H, Q]."""
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads)


def configure(config: Mapping[str, Any], values: Mapping[str, Any]) -> AudioRecipe:
    """Return the recipe of a checkpoint. Raises CheckpointError, InvalidRequest."""
    serving = serving_of(values)
    sizes, dtype = WhisperConfig.from_hf(config), jnp.dtype(values["DTYPE"])
    form = WeightForm(dtype=dtype, layout=serving.layout)
    return AudioRecipe(
        blueprint=blueprint(lambda: Whisper(sizes, form)),
        config=sizes,
        dtype=dtype,
        serving=serving,
    )


WHISPER = AudioClass("whisper", ("whisper",), AUDIO_DEFAULTS, configure, title="Whisper")
