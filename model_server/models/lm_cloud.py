"""The LmCloudSpmd models of the Saxml tutorials: a plain decoder with random weights.

Source: the recipe of `saxml.server.pax.lm.params.lm_cloud`: pre-norm decoder, sinusoidal
positions, combined QKV, ungated GELU, tied embedding, attention logits soft-capped at 50 and
output logits at 30. No public checkpoint exists for them; checkpoint "None" fills them at random.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.models.layers import Embedding, Linear, run_layer
from model_server.models.recipe import SERVING_DEFAULTS, ModelClass, Recipe, serving
from model_server.models.weight import weight
from sax.errors import CheckpointError, InvalidRequest

_ATTENTION_CAP = 50.0
_LOGITS_CAP = 30.0
_PACKAGE = "saxml.server.pax.lm.params.lm_cloud"


@dataclass(frozen=True, slots=True, kw_only=True)
class LmCloudConfig:
    """The sizes of one LmCloudSpmd model."""

    layers: int
    embed: int
    ffw: int
    heads: int
    head_dim: int
    vocab: int


class LayerNorm(nnx.Module):
    """(x - mean) / std * scale + bias (Ba et al. 2016, https://arxiv.org/abs/1607.06450)."""

    def __init__(self, size: int) -> None:
        self.scale = weight((size,), (None,), dtype=jnp.float32)
        self.bias = weight((size,), (None,), dtype=jnp.float32, spread=0.0)

    def __call__(self, x: jax.Array) -> jax.Array:
        centred = x - x.mean(-1, keepdims=True)
        variance = jnp.square(centred).mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt(variance + 1e-6) * self.scale[...] + self.bias[...]


class Layer(nnx.Module):
    """Full multi-head attention, then an ungated GELU feed-forward."""

    def __init__(self, config: LmCloudConfig, dtype: Any) -> None:
        c = config
        self.config = config
        width = c.heads * c.head_dim
        self.before_attention = LayerNorm(c.embed)
        self.qkv = Linear(3 * width, c.embed, ("heads", "embed"), dtype=dtype)
        self.out = Linear(c.embed, width, ("embed", "heads"), dtype=dtype)
        self.before_ffw = LayerNorm(c.embed)
        self.up = Linear(c.ffw, c.embed, ("ffw", "embed"), dtype=dtype)
        self.down = Linear(c.embed, c.ffw, ("embed", "ffw"), dtype=dtype)

    def __call__(
        self, x: jax.Array, pages: LayerPages, batch: PagedBatch
    ) -> tuple[jax.Array, LayerPages]:
        c = self.config
        qkv = self.qkv(self.before_attention(x)).reshape(x.shape[0], 3, c.heads, c.head_dim)
        q, k, v = qkv[:, 0], qkv[:, 1], qkv[:, 2]
        mixed, pages = batch.attend(pages, q, k, v, scale=c.head_dim**-0.5, softcap=_ATTENTION_CAP)
        x = x + self.out(mixed.reshape(x.shape[0], -1))
        return x + self.down(jax.nn.gelu(self.up(self.before_ffw(x)))), pages


class LmCloud(nnx.Module):
    """Tokens to hidden states, hidden states to logits."""

    def __init__(self, config: LmCloudConfig, dtype: Any = jnp.bfloat16) -> None:
        self.config = config
        self.embedding = Embedding(config.vocab, config.embed, dtype=dtype)
        self.layers = nnx.List([Layer(config, dtype) for _ in range(config.layers)])
        self.final_norm = LayerNorm(config.embed)

    def __call__(
        self,
        tokens: jax.Array,  # i32[T]
        positions: jax.Array,  # i32[T]
        pages: Sequence[LayerPages],
        batch: PagedBatch,
    ) -> tuple[jax.Array, tuple[LayerPages, ...]]:
        """Final hidden states f32[T, D], normalised, and the pages with the new tokens."""
        x = self.embedding(tokens) * self.config.embed**0.5
        x = x + sinusoids(positions, self.config.embed)
        written: list[LayerPages] = []
        for layer, layer_pages in zip(self.layers, pages, strict=True):
            x, layer_pages = run_layer(layer, x, layer_pages, batch)
            written.append(layer_pages)
        return self.final_norm(x), tuple(written)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """f32[R, D] to f32[R, V], soft-capped."""
        return _LOGITS_CAP * jnp.tanh(self.embedding.logits(hidden) / _LOGITS_CAP)


def sinusoids(positions: jax.Array, size: int) -> jax.Array:
    """f32[T, D]: sines, then cosines (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762)."""
    half = size // 2
    rates = 10000.0 ** (-jnp.arange(half, dtype=jnp.float32) / max(half - 1, 1))
    angles = positions.astype(jnp.float32)[:, None] * rates
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


_SIZES_2B: dict[str, Any] = {
    "NUM_LAYERS": 18,
    "MODEL_DIMS": 3072,
    "HIDDEN_DIMS": 12288,
    "NUM_HEADS": 24,
    "DIMS_PER_HEAD": 128,
    "VOCAB_SIZE": 32000,
    "INPUT_SEQ_LEN": 256,
}
_SIZES_175B: dict[str, Any] = _SIZES_2B | {
    "NUM_LAYERS": 96,
    "MODEL_DIMS": 12288,
    "HIDDEN_DIMS": 49152,
    "NUM_HEADS": 96,
    "INPUT_SEQ_LEN": 128,
}
_SERVED_2B = {**SERVING_DEFAULTS} | {
    "NUM_SAMPLES": 2,
    "TEMPERATURE": 0.1,
    "TOP_K": 40,
    "MAX_DECODE_STEPS": 32,
}
_SERVED_175B = {**SERVING_DEFAULTS} | {
    "TEMPERATURE": 0.5,
    "TOP_K": 40,
    "TOP_P": 0.95,
    "MAX_DECODE_STEPS": 128,
}


def model_classes() -> list[ModelClass]:
    """Every variant that fits one process; meshes of several devices come with their loader."""
    return [
        ModelClass(f"{_PACKAGE}.LmCloudSpmd2BTest", False, _SIZES_2B | _SERVED_2B, _configure),
        ModelClass(
            f"{_PACKAGE}.LmCloudSpmd175BTest", False, _SIZES_175B | _SERVED_175B, _configure
        ),
        ModelClass(
            f"{_PACKAGE}.LmCloudSpmd175B32Test", False, _SIZES_175B | _SERVED_175B, _configure
        ),
    ]


def _configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    if config is not None:
        raise CheckpointError('the LmCloudSpmd test models take checkpoint "None": random weights')
    for key in _SIZES_2B:
        if not isinstance(values[key], int) or values[key] < 1:
            raise InvalidRequest(f"{key} must be at least 1", param=f"overrides.{key}")
    sizes = LmCloudConfig(
        layers=values["NUM_LAYERS"],
        embed=values["MODEL_DIMS"],
        ffw=values["HIDDEN_DIMS"],
        heads=values["NUM_HEADS"],
        head_dim=values["DIMS_PER_HEAD"],
        vocab=values["VOCAB_SIZE"],
    )
    served = serving(values, values["INPUT_SEQ_LEN"] + values["MAX_DECODE_STEPS"])
    dtype = jnp.dtype(served["dtype"])
    return Recipe(
        build=lambda: LmCloud(sizes, dtype),
        layers=sizes.layers,
        kv_heads=sizes.heads,
        head_dim=sizes.head_dim,
        embed=sizes.embed,
        vocab=sizes.vocab,
        **served,
    )
