"""Llama 1/2/3, SmolLM: pre-norm decoder, rotary positions, grouped queries, gated SiLU.

Source: Touvron et al. 2023 (arXiv:2302.13971, arXiv:2307.09288); names and config keys are those
of Hugging Face's `LlamaForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.models.layers import (
    Embedding,
    Linear,
    RmsNorm,
    Rotary,
    rope_frequencies,
    rotary,
    run_layer,
    stretch_llama3,
)
from model_server.models.recipe import Recipe, serving
from sax.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """The sizes of one Llama."""

    layers: int
    embed: int
    ffw: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_context: int
    frequencies: tuple[float, ...]  # of the rotary positions, radians per token
    epsilon: float
    tied: bool
    attention_bias: bool = False
    ffw_bias: bool = False

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> LlamaConfig:
        """From `config.json`. Raises CheckpointError for what this family does not compute."""
        _refuse_variants(config)
        try:
            heads = int(config["num_attention_heads"])
            embed = int(config["hidden_size"])
            return cls(
                layers=int(config["num_hidden_layers"]),
                embed=embed,
                ffw=int(config["intermediate_size"]),
                heads=heads,
                kv_heads=int(config.get("num_key_value_heads") or heads),
                head_dim=int(config.get("head_dim") or embed // heads),
                vocab=int(config["vocab_size"]),
                max_context=int(config.get("max_position_embeddings", 2048)),
                frequencies=_frequencies(config, int(config.get("head_dim") or embed // heads)),
                epsilon=float(config.get("rms_norm_eps", 1e-6)),
                tied=bool(config.get("tie_word_embeddings", False)),
                attention_bias=bool(config.get("attention_bias", False)),
                ffw_bias=bool(config.get("mlp_bias", False)),
            )
        except KeyError as missing:
            raise CheckpointError(f"config has no {missing}, which a Llama needs") from missing


def _frequencies(config: Mapping[str, Any], head_dim: int) -> tuple[float, ...]:
    # transformers 5 moved rope_theta and rope_scaling into rope_parameters.
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(config.get("rope_theta") or scaling.get("rope_theta") or 10000.0)
    plain = rope_frequencies(head_dim, theta)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return tuple(plain.tolist())
    if kind != "llama3":
        raise CheckpointError(f"rope scaling {kind!r} is not computed by the llama family")
    stretched = stretch_llama3(
        plain,
        factor=float(scaling["factor"]),
        low=float(scaling["low_freq_factor"]),
        high=float(scaling["high_freq_factor"]),
        original_context=int(scaling["original_max_position_embeddings"]),
    )
    return tuple(stretched.tolist())


def _refuse_variants(config: Mapping[str, Any]) -> None:
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise CheckpointError(f"activation {activation!r} is not computed by the llama family")


def _biases(wanted: bool, *names: str) -> tuple[str, ...] | None:
    return names if wanted else None


class Attention(nnx.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: LlamaConfig, prefix: str, dtype: Any) -> None:
        self.config = config
        c = config
        self.qkv = Linear(
            (c.heads + 2 * c.kv_heads) * c.head_dim,
            c.embed,
            ("heads", "embed"),
            tuple(f"{prefix}.self_attn.{name}_proj.weight" for name in "qkv"),
            dtype=dtype,
            bias_names=_biases(
                c.attention_bias, *(f"{prefix}.self_attn.{name}_proj.bias" for name in "qkv")
            ),
        )
        self.out = Linear(
            c.embed,
            c.heads * c.head_dim,
            ("embed", "heads"),
            (f"{prefix}.self_attn.o_proj.weight",),
            dtype=dtype,
            bias_names=_biases(c.attention_bias, f"{prefix}.self_attn.o_proj.bias"),
        )

    def __call__(
        self, x: jax.Array, rotation: Rotary, pages: LayerPages, batch: PagedBatch
    ) -> tuple[jax.Array, LayerPages]:
        c = self.config
        qkv = self.qkv(x).reshape(x.shape[0], -1, c.head_dim)
        rotated = rotation(qkv[:, : c.heads + c.kv_heads])
        q, k = rotated[:, : c.heads], rotated[:, c.heads :]
        v = qkv[:, c.heads + c.kv_heads :]
        mixed, pages = batch.attend(pages, q, k, v, scale=c.head_dim**-0.5)
        return self.out(mixed.reshape(x.shape[0], -1)), pages


class FeedForward(nnx.Module):
    """down(silu(gate(x)) * up(x)), gate and up in one product."""

    def __init__(self, config: LlamaConfig, prefix: str, dtype: Any) -> None:
        self.gate_up = Linear(
            2 * config.ffw,
            config.embed,
            ("ffw", "embed"),
            (f"{prefix}.mlp.gate_proj.weight", f"{prefix}.mlp.up_proj.weight"),
            dtype=dtype,
            bias_names=_biases(
                config.ffw_bias, f"{prefix}.mlp.gate_proj.bias", f"{prefix}.mlp.up_proj.bias"
            ),
        )
        self.down = Linear(
            config.embed,
            config.ffw,
            ("embed", "ffw"),
            (f"{prefix}.mlp.down_proj.weight",),
            dtype=dtype,
            bias_names=_biases(config.ffw_bias, f"{prefix}.mlp.down_proj.bias"),
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        gate, up = jnp.split(self.gate_up(x), 2, axis=-1)
        return self.down(jax.nn.silu(gate) * up)


class Layer(nnx.Module):
    """Attention and feed-forward, each behind a norm and beside the residual."""

    def __init__(self, config: LlamaConfig, index: int, dtype: Any) -> None:
        prefix = f"model.layers.{index}"
        norm = {"size": config.embed, "epsilon": config.epsilon}
        self.before_attention = RmsNorm(names=(f"{prefix}.input_layernorm.weight",), **norm)
        self.attention = Attention(config, prefix, dtype)
        self.before_ffw = RmsNorm(names=(f"{prefix}.post_attention_layernorm.weight",), **norm)
        self.ffw = FeedForward(config, prefix, dtype)

    def __call__(
        self, x: jax.Array, rotation: Rotary, pages: LayerPages, batch: PagedBatch
    ) -> tuple[jax.Array, LayerPages]:
        mixed, pages = self.attention(self.before_attention(x), rotation, pages, batch)
        x = x + mixed
        return x + self.ffw(self.before_ffw(x)), pages


class Llama(nnx.Module):
    """Tokens to hidden states, hidden states to logits."""

    def __init__(self, config: LlamaConfig, dtype: Any = jnp.bfloat16) -> None:
        self.config = config
        self.embedding = Embedding(
            config.vocab, config.embed, ("model.embed_tokens.weight",), dtype=dtype
        )
        self.layers = nnx.List([Layer(config, i, dtype) for i in range(config.layers)])
        self.final_norm = RmsNorm(config.embed, ("model.norm.weight",), epsilon=config.epsilon)
        if not config.tied:
            self.head = Linear(
                config.vocab, config.embed, ("vocab", "embed"), ("lm_head.weight",), dtype=dtype
            )

    def __call__(
        self,
        tokens: jax.Array,  # i32[T]
        positions: jax.Array,  # i32[T]
        pages: Sequence[LayerPages],
        batch: PagedBatch,
    ) -> tuple[jax.Array, tuple[LayerPages, ...]]:
        """Final hidden states f32[T, D], normalised, and the pages with the new tokens."""
        rotation = rotary(positions, np.asarray(self.config.frequencies, np.float32))
        x = self.embedding(tokens)
        written: list[LayerPages] = []
        for layer, layer_pages in zip(self.layers, pages, strict=True):
            x, layer_pages = run_layer(layer, x, rotation, layer_pages, batch)
            written.append(layer_pages)
        return self.final_norm(x), tuple(written)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """f32[R, D] to f32[R, V]."""
        return self.embedding.logits(hidden) if self.config.tied else self.head(hidden)


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    """A recipe from a checkpoint's config.json and checked override values."""
    assert config is not None, "the registry says that llama needs a checkpoint"
    sizes = LlamaConfig.from_hf(config)
    served = serving(values, sizes.max_context)
    dtype = jnp.dtype(served["dtype"])
    return Recipe(
        build=lambda: Llama(sizes, dtype),
        layers=sizes.layers,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        embed=sizes.embed,
        vocab=sizes.vocab,
        **served,
    )
