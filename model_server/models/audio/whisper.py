"""Whisper: an encoder of spectrograms, and a decoder that attends to it and to its own tokens.

Source: Radford et al. 2022 (arXiv:2212.04356); names and config keys are those of Hugging Face's
`WhisperForConditionalGeneration`.

Functions are pure; `weights` are the `arrays` of a `Whisper`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from model_server.kernels.cpu import rows
from model_server.kernels.cpu.attention import CpuAttention
from model_server.kernels.cpu.attention import written as native_written
from model_server.kernels.cpu.served import is_native
from model_server.kernels.paged import SeenPages
from model_server.kernels.pages import LayerPages
from model_server.kernels.whole import attend_among
from model_server.models.audio.alignment import Heads
from model_server.models.audio.audio_recipe import (
    AUDIO_DEFAULTS,
    AudioClass,
    AudioRecipe,
    serving_of,
)
from model_server.models.audio.whisper_config import WhisperConfig
from model_server.models.audio.whisper_weights import LinearArrays, Norm, Tree, Whisper
from model_server.models.layers.activations import gate_of
from model_server.models.layers.layers import EVERY_ROW, project
from model_server.models.weights.tiled import Tiled
from model_server.models.weights.weight import WeightForm, blueprint

_EPSILON = 1e-5  # of every norm
_DIMENSIONS = ("NWC", "OIW", "NWC")
_LANES = 16  # tokens of a page are a multiple of this many


WhisperCache = tuple[LayerPages, ...]  # of each layer, a row of the batch in a page of its own


def encode(config: WhisperConfig, weights: Tree, mels: jax.Array, together: int = 1) -> jax.Array:
    """Map spectrograms f32[B, frames, bins] to states f32[B, S, D].

    together: rows that attend at once; of a batch that is divided over devices, one on each.
    """
    live = _live(weights)
    x = mels
    for number, linear in enumerate(weights["convolutions"]):
        x = gelu_convolved(x, linear, number + 1, live)
    x = x + weights["places"].astype(jnp.float32)
    for held in weights["encoder"]:
        x = _encoder_layer(config, together, held, x, live)
    return _normed(x, weights["encoder_norm"], live)


def crossed(config: WhisperConfig, weights: Tree, states: jax.Array) -> WhisperCache:
    """Return what each layer of the decoder reads of the encoder's states f32[B, S, D]."""
    shapes = empty_pages(config, weights["positions"].dtype, len(states), config.positions)
    ends = ((0, 0), (0, shapes.keys.shape[3] - config.positions), (0, 0), (0, 0))

    def paged(cross: Tree) -> LayerPages:
        made = (_split(_product(states, cross[name]), config.heads[1]) for name in ("k", "v"))
        k, v = (jnp.pad(each.astype(shapes.keys.dtype), ends) for each in made)
        return LayerPages(k.transpose(0, 2, 3, 1), v.swapaxes(1, 2))

    return tuple(paged(held["cross"]) for held in weights["decoder"])


def empty_pages(config: WhisperConfig, dtype: Any, rows: int, length: int) -> LayerPages:
    """Return pages of a layer of the decoder, with room for so many tokens of each row."""
    heads, tokens = config.heads[1], -(-length // _LANES) * _LANES
    shape = (rows, heads, config.embed // heads, tokens)
    return LayerPages(jnp.zeros(shape, dtype), jnp.zeros((*shape[:2], *shape[:1:-1]), dtype))


def empty_cache(config: WhisperConfig, dtype: Any, rows: int) -> WhisperCache:
    return tuple(empty_pages(config, dtype, rows, config.context) for _ in range(config.layers[1]))


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
    x, live = _embedded(weights, tokens, positions), _live(weights)
    written: list[LayerPages] = []
    for held, sound, pages in zip(weights["decoder"], cross, cache, strict=True):
        x, pages = _decoder_layer(config, held, x, (sound, pages), positions, live)
        written.append(pages)
    return _normed(x, weights["decoder_norm"], live), tuple(written)


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
    places, live = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape), _live(weights)
    x, cache = _embedded(weights, tokens, places), empty_cache(config, jnp.float32, len(tokens))
    looked: dict[tuple[int, int], jax.Array] = {}
    for layer, (held, sound, pages) in enumerate(
        zip(weights["decoder"], cross, cache, strict=True)
    ):
        x, _ = _self_attended(config, held, x, pages, places, live)
        mine = [head for of, head in heads if of == layer]
        if mine:
            queries = _queries(config, held["cross"], _normed(x, held["cross_norm"], live))
            shares = _shares(
                queries[:, :, np.asarray(mine)].astype(sound.keys.dtype),
                sound.keys[:, np.asarray(mine)],
                jnp.broadcast_to(positions[:, None], tokens.shape),
            )
            looked |= {(layer, head): shares[:, at] for at, head in enumerate(mine)}
        x = _cross_attended(config, held, x, sound, live)
        x = _fed_forward(config, held, x, live)
    return jnp.stack([looked[each] for each in heads], 1)[..., : config.positions]


def logits(weights: Tree, x: jax.Array) -> jax.Array:
    """Map vectors f32[..., D] to logits f32[..., V]."""
    head = weights["table"] if weights["head"] is None else weights["head"]
    return _product(x, LinearArrays(head, None))


def _live(weights: Tree) -> jax.Array | None:
    """Return rows for the native kernels, all of them; None: XLA computes."""
    return jnp.asarray(EVERY_ROW) if isinstance(weights["table"], Tiled) else None


def _embedded(weights: Tree, tokens: jax.Array, positions: jax.Array) -> jax.Array:
    """f32[B, T, D] of tokens i32[B, T]."""
    table = weights["table"]
    if isinstance(table, Tiled):
        vectors = table.rows(tokens.reshape(-1)).reshape(*tokens.shape, -1)
    else:
        vectors = table[tokens].astype(jnp.float32)
    return vectors + weights["positions"][positions].astype(jnp.float32)


# Layers of one shape are traced once.


@partial(jax.jit, static_argnums=(0, 1))
def _encoder_layer(
    config: WhisperConfig, together: int, held: Tree, x: jax.Array, live: jax.Array | None
) -> jax.Array:
    x = x + _attend_all(config, held["attention"], _normed(x, held["norm"], live), together, live)
    return _fed_forward(config, held, x, live)


@partial(jax.jit, static_argnums=0)
def _decoder_layer(
    config: WhisperConfig,
    held: Tree,
    x: jax.Array,
    seen: tuple[LayerPages, LayerPages],
    positions: jax.Array,
    live: jax.Array | None,
) -> tuple[jax.Array, LayerPages]:
    """seen: of the sound, and of the tokens so far."""
    sound, pages = seen
    x, pages = _self_attended(config, held, x, pages, positions, live)
    x = _cross_attended(config, held, x, sound, live)
    return _fed_forward(config, held, x, live), pages


def _self_attended(
    config: WhisperConfig,
    held: Tree,
    x: jax.Array,
    pages: LayerPages,
    positions: jax.Array,
    live: jax.Array | None,
) -> tuple[jax.Array, LayerPages]:
    """Add to x f32[B, T, D] what its tokens see of each other and of those before them."""
    attention, normed = held["attention"], _normed(x, held["norm"], live)
    made = (_product(normed, attention[name]) for name in "qkv")
    q, k, v = (_split(each, config.heads[1]) for each in made)
    if live is not None:
        pages = native_written(pages, k, v, positions)
    else:
        pages = _written(pages, k, v, positions)
    mixed = _attend(q, pages, positions + 1, live)
    return x + _product(mixed.reshape(x.shape), attention["out"]), pages


def _written(pages: LayerPages, k: jax.Array, v: jax.Array, positions: jax.Array) -> LayerPages:
    """Return pages with keys and values f32[B, T, H, Q] at positions i32[B, T]."""
    each, (keys, values, *_) = jnp.arange(len(k))[:, None], pages
    assert values is not None, "the keys are no values"
    return LayerPages(
        keys.at[each, :, :, positions].set(k.astype(keys.dtype)),
        values.at[each, :, positions].set(v.astype(values.dtype)),
    )


def _cross_attended(
    config: WhisperConfig, held: Tree, x: jax.Array, sound: LayerPages, live: jax.Array | None
) -> jax.Array:
    """Add to x f32[B, T, D] what its tokens see of the sound."""
    queries = _queries(config, held["cross"], _normed(x, held["cross_norm"], live))
    whole = jnp.full(x.shape[:2], config.positions, jnp.int32)
    mixed = _attend(queries, sound, whole, live)
    return x + _product(mixed.reshape(x.shape), held["cross"]["out"])


def _queries(config: WhisperConfig, attention: Tree, x: jax.Array) -> jax.Array:
    return _split(_product(x, attention["q"]), config.heads[1])


def _attend(
    q: jax.Array, pages: LayerPages, limits: jax.Array, live: jax.Array | None
) -> jax.Array:
    """f32[B, T, H, Q] of queries f32[B, T, H, Q] that see so many tokens i32[B, T] of a page."""
    if live is not None:
        tables = jnp.arange(len(q), dtype=jnp.int32)[:, None]
        seen = SeenPages(pages, tables, limits.astype(jnp.int32))
        return CpuAttention().attention(q, [seen], scale=q.shape[-1] ** -0.5)
    keys, values, *_ = pages
    assert values is not None, "the keys are no values"
    shares = _shares(q.astype(keys.dtype), keys, limits).astype(keys.dtype)
    return _einsum("bhts,bhsq->bthq", shares, values)


def _shares(queries: jax.Array, keys: jax.Array, limits: jax.Array) -> jax.Array:
    """f32[B, H, T, S]: how much each query looks at each key; limits: i32[B, T]."""
    scores = _einsum("bthq,bhqs->bhts", queries, keys) * queries.shape[-1] ** -0.5
    seen = jnp.arange(keys.shape[-1]) < limits[:, None, :, None]
    return jax.nn.softmax(jnp.where(seen, scores, -jnp.inf))


def _attend_all(
    config: WhisperConfig,
    attention: Tree,
    x: jax.Array,
    together: int,
    live: jax.Array | None,
) -> jax.Array:
    """Attend from every position of f32[B, S, D] to every other, some rows after the others: scores
    of all rows would take gigabytes."""
    made = [_split(_product(x, attention[name]), config.heads[0]) for name in "qkv"]
    if live is not None:
        lengths, (q, k, v) = jnp.full(len(x), x.shape[1], jnp.int32), made
        mixed = attend_among(q, k, v, lengths, live)
        return _product(mixed.reshape(x.shape), attention["out"])
    dtype = attention["q"].kernel.dtype

    def in_turns(part: jax.Array) -> jax.Array:  # [B / together, together, S, H, Q]
        return part.astype(dtype).reshape(together, -1, *part.shape[1:]).swapaxes(0, 1)

    def turn(given: Sequence[jax.Array]) -> jax.Array:
        queries, keys, values = given
        scores = _einsum("bthq,bshq->bhts", queries, keys) * queries.shape[-1] ** -0.5
        return _einsum("bhts,bshq->bthq", jax.nn.softmax(scores).astype(dtype), values)

    mixed = lax.map(turn, [in_turns(part) for part in made])
    return _product(mixed.swapaxes(0, 1).reshape(x.shape), attention["out"])


def _fed_forward(
    config: WhisperConfig, held: Tree, x: jax.Array, live: jax.Array | None
) -> jax.Array:
    normed, up = _normed(x, held["ffw_norm"], live), held["up"]
    gate = gate_of(config.activation)
    if live is None or gate is None:
        return x + _product(config.activation(_product(normed, up)), held["down"])
    wide = _product(normed, up._replace(bias=None))
    inner = rows.activated(wide.reshape(-1, wide.shape[-1]), up.bias, live, gate)
    return x + _product(inner.reshape(wide.shape), held["down"])


def _normed(x: jax.Array, norm: Norm, live: jax.Array | None) -> jax.Array:
    if live is not None:
        flat = x.reshape(-1, x.shape[-1])
        return rows.layer_norm(flat, None, live, *norm, epsilon=_EPSILON)[1].reshape(x.shape)
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + _EPSILON) * norm.scale + norm.bias


def _product(x: jax.Array, linear: LinearArrays) -> jax.Array:
    """f32[..., in] to f32[..., out]."""
    if isinstance(linear.kernel, Tiled):
        flat = linear.kernel.project(x.reshape(-1, x.shape[-1]))
        made = flat.reshape(*x.shape[:-1], -1)
    else:
        made = _einsum("...i,oi->...o", x.astype(linear.kernel.dtype), linear.kernel)
    return made if linear.bias is None else made + linear.bias


def _einsum(spelled: str, a: jax.Array, b: jax.Array) -> jax.Array:
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return jnp.einsum(spelled, a, b, precision=precision, preferred_element_type=jnp.float32)


def gelu_convolved(
    x: jax.Array, linear: LinearArrays, stride: int, live: jax.Array | None
) -> jax.Array:
    """f32[B, W, in] to gelu f32[B, W / stride, out]; kernel: [out, in, 3].

    The exact gelu, whatever the layers' own activation is.
    """
    kernel, bias = linear
    assert bias is not None, "every convolution has one"
    if live is None:
        return jax.nn.gelu(_convolved(x, kernel, stride) + bias[None, None], approximate=False)
    padded = jnp.pad(x, ((0, 0), (1, 1), (0, 0)))
    count = -(-x.shape[1] // stride)
    taps = [padded[:, at:][:, : stride * count : stride] for at in range(3)]
    near = jnp.concatenate(taps, -1)
    by_taps = kernel.swapaxes(1, 2).reshape(len(kernel), -1)
    made = project(near.reshape(-1, near.shape[-1]), by_taps, live)
    return rows.activated(made, bias, live, "gelu").reshape(len(x), count, -1)


def _convolved(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    return lax.conv_general_dilated(
        x.astype(kernel.dtype),
        kernel,
        (stride,),
        ((1, 1),),
        dimension_numbers=_DIMENSIONS,
        precision=lax.Precision.HIGHEST if kernel.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )


def _split(x: jax.Array, heads: int) -> jax.Array:
    """[..., D] to [..., H, Q]."""
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads)


def configure(config: Mapping[str, Any], values: Mapping[str, Any]) -> AudioRecipe:
    """Return the recipe of a checkpoint. Raises CheckpointError, InvalidRequest."""
    serving = serving_of(values)
    sizes, dtype = WhisperConfig.from_hf(config), jnp.dtype(values["DTYPE"])
    layout = serving.layout
    native = is_native(layout.platform, layout.mesh.size)
    form = WeightForm(dtype=dtype, layout=layout, tiles=native, whole=True)
    return AudioRecipe(
        blueprint=blueprint(lambda: Whisper(sizes, form)),
        config=sizes,
        dtype=dtype,
        serving=serving,
    )


WHISPER = AudioClass("whisper", ("whisper",), AUDIO_DEFAULTS, configure, title="Whisper")
