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
import numpy as np
from jax import lax

from model_server.models.audio.alignment import Heads
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


def alignment(
    config: WhisperConfig,
    weights: Tree,
    cross: WhisperCache,
    tokens: jax.Array,
    positions: jax.Array,
    heads: Heads,
) -> jax.Array:
    """Read tokens i32[B, T] from the start; return f32[B, A, T, S], what each of A heads looks at.

    positions: i32[B] of the encoder that hold sound, among which a head's shares are.
    """
    rows, count = tokens.shape
    x = weights["table"][tokens].astype(jnp.float32)
    x = x + weights["positions"][:count].astype(jnp.float32)
    seen = jnp.broadcast_to(jnp.tri(count, dtype=bool), (rows, count, count))
    sound = jnp.arange(config.positions) < positions[:, None, None]  # bool[B, 1, S]

    def layer(carry: Any, held: Any) -> tuple[Any, None]:
        x, looked = carry
        (which, place), held, cross = held
        own = _keys_and_values(config, held["attention"], _normed(x, held["norm"]), x.dtype)
        x = x + _attend(config, held["attention"], _normed(x, held["norm"]), own, seen)
        normed = _normed(x, held["cross_norm"])
        queries = _queries(config, held["cross"], normed, cross.keys.dtype)
        shares = _shares(queries[:, :, which], cross.keys[:, :, which], sound)
        looked = looked.at[:, place].set(shares, mode="drop")
        x = x + _attend(config, held["cross"], normed, cross, None)
        return (_fed_forward(config, held, x), looked), None

    looked = jnp.zeros((rows, len(heads), count, config.positions), jnp.float32)
    layers = (_of_layers(heads, config.layers[1]), weights["decoder"], cross)
    (_, looked), _ = lax.scan(layer, (x, looked), layers)
    return looked


def _of_layers(heads: Heads, layers: int) -> tuple[np.ndarray, np.ndarray]:
    """i32[L, M] of each layer: its heads among these, and their places; len(heads) where it has
    fewer than M."""
    places = [[at for at, (of, _) in enumerate(heads) if of == layer] for layer in range(layers)]
    shape = layers, max(map(len, places))
    which, place = np.zeros(shape, np.int32), np.full(shape, len(heads), np.int32)
    for layer, found in enumerate(places):
        which[layer, : len(found)] = [heads[at][1] for at in found]
        place[layer, : len(found)] = found
    return which, place


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
    made = _keys_and_values(config, attention, _normed(x, held["norm"]), cache.keys.dtype)
    return WhisperCache(
        cache.keys.at[place].set(made.keys), cache.values.at[place].set(made.values)
    )


def _keys_and_values(
    config: WhisperConfig, attention: Tree, x: jax.Array, dtype: Any
) -> WhisperCache:
    """[B, T, H, Q] of one layer, from normalised f32[B, T, D]."""
    made = (_split(_product(x, attention[name]), config.heads[1]) for name in ("k", "v"))
    return WhisperCache(*(each.astype(dtype) for each in made))


def _queries(config: WhisperConfig, attention: Tree, x: jax.Array, dtype: Any) -> jax.Array:
    return _split(_product(x, attention["q"]), config.heads[1]).astype(dtype)


def _shares(queries: jax.Array, keys: jax.Array, seen: jax.Array | None) -> jax.Array:
    """f32[B, H, T, S]: how much each query looks at each key; seen: bool[B, T, S]."""
    scores = _einsum("bthq,bshq->bhts", queries, keys) * queries.shape[-1] ** -0.5
    return jax.nn.softmax(scores if seen is None else jnp.where(seen[:, None], scores, -jnp.inf))


def _attend(
    config: WhisperConfig,
    attention: Tree,
    x: jax.Array,
    held: WhisperCache,
    seen: jax.Array | None,
) -> jax.Array:
    """Attend from f32[B, T, D] to [B, S, H, Q]; seen: bool[B, T, S], None: everything."""
    queries = _queries(config, attention, x, held.keys.dtype)
    shares = _shares(queries, held.keys, seen).astype(held.values.dtype)
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
