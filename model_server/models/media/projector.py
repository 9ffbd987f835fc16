"""Projectors, from a tower's vectors to a model's: two matrices, or queries that read windows.

Sources: LLaVA, Liu et al. 2023 (arXiv:2310.03744); the Q-Former of BLIP-2, Li et al. 2023
(arXiv:2301.12597), whose names and config keys are those of Hugging Face's `Blip2QFormerModel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys, ignored, one_of
from model_server.models.layers.activations import Activation, activation_of
from model_server.models.layers.layers import LayerNorm, Linear, RmsNorm, UnitNorm
from model_server.models.media.tower_layer import dense, plain_ffw
from model_server.models.weights.weight import WeightForm, weight
from sax.errors import CheckpointError

NAME = "multi_modal_projector"
PROJECTOR_KEYS = ("multimodal_projector_bias", "projector_hidden_act")


class Projector(nnx.Module):
    """Maps f32[R, inputs] to f32[R, embed]."""

    def __init__(
        self, keys: ConfigKeys, embed: int, inputs: int, form: WeightForm, *, biased: bool
    ) -> None:
        """biased: if config.json does not say."""
        biased = keys.flag("multimodal_projector_bias", biased)
        names = [f"{NAME}.linear_{number}" for number in (1, 2)]
        kernels = [(f"{name}.weight",) for name in names]
        biases = [(f"{name}.bias",) if biased else None for name in names]
        self.first = Linear(embed, inputs, ("ffw", None), kernels[0], form=form, bias=biases[0])
        self.second = Linear(embed, embed, ("embed", "ffw"), kernels[1], form=form, bias=biases[1])
        self.activation = activation_of(keys.get("projector_hidden_act", "gelu"))

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.second(self.activation(self.first(x)))


_FORMER_KEYS = KnownKeys(
    "blip_2_qformer",
    (
        *("cross_attention_frequency", "encoder_hidden_size", "hidden_act", "hidden_size"),
        *("intermediate_size", "layer_norm_eps", "num_attention_heads", "num_hidden_layers"),
    ),
    {
        **ignored("max_position_embeddings", "vocab_size"),
        "position_embedding_type": one_of("absolute"),  # queries have no positions
        "use_qformer_text_input": one_of(False),
    },
)
_FORMER_SIZES = {
    **{"cross_attention_frequency": 2, "encoder_hidden_size": 1408, "hidden_size": 768},
    **{"intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12},
    **{"layer_norm_eps": 1e-12},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerSizes:
    embed: int
    inputs: int  # of what it reads
    layers: int
    heads: int
    ffw: int
    every: int  # layers of which the first reads a window
    activation: Activation
    epsilon: float
    window: int  # frames
    queries: int  # vectors that a window becomes

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], window: int, queries: int) -> FormerSizes:
        """Parse `projector_config`. Raises CheckpointError for unsupported settings."""
        keys = ConfigKeys(config, _FORMER_KEYS, _FORMER_SIZES)
        embed, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
        if embed % heads:
            raise CheckpointError(
                f"projector_config has hidden_size = {embed} and {heads} attention heads; give a "
                "number of heads that divides it"
            )
        return cls(
            embed=embed,
            inputs=keys.whole("encoder_hidden_size"),
            layers=keys.whole("num_hidden_layers"),
            heads=heads,
            ffw=keys.whole("intermediate_size"),
            every=keys.whole("cross_attention_frequency"),
            activation=activation_of(keys.get("hidden_act", "gelu")),
            epsilon=keys.number("layer_norm_eps"),
            window=window,
            queries=queries,
        )


class FormerAttention(nnx.Module):
    """norm(x + attention to a context), of whole windows at once."""

    def __init__(self, sizes: FormerSizes, inputs: int, name: str, form: WeightForm) -> None:
        self.heads, embed = sizes.heads, sizes.embed
        self.query = dense_layer(embed, embed, f"{name}.attention.query", form)
        self.key = dense_layer(embed, inputs, f"{name}.attention.key", form)
        self.value = dense_layer(embed, inputs, f"{name}.attention.value", form)
        self.out = dense_layer(embed, embed, f"{name}.output.dense", form)
        self.norm = LayerNorm(embed, *dense(f"{name}.output.LayerNorm"), epsilon=sizes.epsilon)

    def __call__(self, x: jax.Array, context: jax.Array) -> jax.Array:
        """Maps f32[W, n, D] with f32[W, m, E] to f32[W, n, D]."""
        dtype = self.out.kernel.get_value().dtype

        def heads(project: Linear, given: jax.Array) -> jax.Array:
            made = project(given.reshape(-1, given.shape[-1])).astype(dtype)
            return made.reshape(*given.shape[:2], self.heads, -1)

        q, k, v = heads(self.query, x), heads(self.key, context), heads(self.value, context)
        wide = {"preferred_element_type": jnp.float32}
        scores = jnp.einsum("wnhq,wmhq->whnm", q, k, **wide) * q.shape[-1] ** -0.5
        weights = jax.nn.softmax(scores, axis=-1).astype(dtype)
        mixed = jnp.einsum("whnm,wmhq->wnhq", weights, v, **wide)
        return self.norm(x + self.out(mixed.reshape(-1, x.shape[-1])).reshape(x.shape))


class FormerLayer(nnx.Module):
    def __init__(self, sizes: FormerSizes, name: str, form: WeightForm, *, reads: bool) -> None:
        self.own = FormerAttention(sizes, sizes.embed, f"{name}.attention", form)
        self.reads = reads
        if reads:
            self.other = FormerAttention(sizes, sizes.inputs, f"{name}.crossattention", form)
        names = f"{name}.intermediate_query.dense", f"{name}.output_query.dense"
        self.ffw = plain_ffw(sizes.embed, sizes.ffw, *names, sizes.activation, form)
        self.norm = LayerNorm(
            sizes.embed, *dense(f"{name}.output_query.LayerNorm"), epsilon=sizes.epsilon
        )

    def __call__(self, x: jax.Array, window: jax.Array) -> jax.Array:
        """Maps f32[W, n, D] to the same; window: f32[W, m, E], of each what it may read."""
        x = self.own(x, x)
        x = self.other(x, window) if self.reads else x
        return self.norm(x + self.ffw(x.reshape(-1, x.shape[-1])).reshape(x.shape))


class WindowProjector(nnx.Module):
    """A Q-Former (Li et al. 2023): a few learned queries read each window of frames."""

    def __init__(self, sizes: FormerSizes, embed: int, form: WeightForm) -> None:
        self.sizes, self.embed, former = sizes, embed, f"{NAME}.qformer"
        self.queries = weight(
            (1, sizes.queries, sizes.embed),
            (None,) * 3,
            (f"{NAME}.query",),
            dtype=jnp.float32,
            spread=1.0,
        )
        self.norm = LayerNorm(sizes.embed, *dense(f"{former}.layernorm"), epsilon=sizes.epsilon)
        self.layers = nnx.List(
            [
                FormerLayer(
                    sizes, f"{former}.encoder.layer.{at}", form, reads=at % sizes.every == 0
                )
                for at in range(sizes.layers)
            ]
        )
        self.out = dense_layer(embed, sizes.embed, f"{NAME}.linear", form)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f32[S, P, E] to f32[S, P // window * queries, embed]."""
        windows = x.reshape(-1, self.sizes.window, x.shape[-1])
        first = self.norm(self.queries[...])
        made = jnp.broadcast_to(first, (len(windows), *first.shape[1:]))
        for layer in self.layers:
            made = layer(made, windows)
        return self.out(made.reshape(-1, made.shape[-1])).reshape(len(x), -1, self.embed)


def dense_layer(outputs: int, inputs: int, name: str, form: WeightForm) -> Linear:
    """Return a projection with a bias, by its name."""
    kernel, bias = dense(name)
    return Linear(outputs, inputs, (None, None), kernel, form=form, bias=bias)


class Gemma3nEmbedder(nnx.Module):
    """Projects vectors of an encoder of Gemma 3n, and of tokens of the encoder's own vocabulary."""

    def __init__(
        self, vocab: int, size: int, embed: int, name: str, form: WeightForm, *, epsilon: float
    ) -> None:
        """size: of the encoder's vectors; embed: of the language model."""
        self.table = weight(
            (vocab, size), (None, None), (f"{name}.embedding.weight",),
            dtype=jnp.float32, spread=0.02,
        )  # fmt: skip
        self.of_tokens, self.of_vectors = (
            RmsNorm(size, (f"{name}.{kind}_embedding_norm.weight",), epsilon=epsilon)
            for kind in ("hard", "soft")
        )
        projection = (f"{name}.embedding_projection.weight",)
        self.projection = Linear(embed, size, ("embed", None), projection, form=form)
        self.norm = UnitNorm(epsilon)

    def vectors(self, x: jax.Array) -> jax.Array:
        """Maps the encoder's f32[T, size] to f32[T, embed]."""
        return self._projected(self.of_vectors(x))

    def tokens(self, rows: tuple[int, ...]) -> jax.Array:
        """Return f32[N, embed] of N rows of the vocabulary."""
        return self._projected(self.of_tokens(self.table[...][jnp.asarray(rows)]))

    def _projected(self, x: jax.Array) -> jax.Array:
        return self.norm(self.projection(x))
