"""Falcon-H1: attention and Mamba-2 side by side in every layer, with a factor for each product.

Source: TII 2025 (arXiv:2507.22448); names and config keys are those of Hugging Face's
`FalconH1ForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.kernels.row_sums import rounded
from model_server.kernels.states import State
from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import decoder_recipe, norm_of
from model_server.models.families.llama import attention_shape, biased_attention
from model_server.models.families.recurrent.mixers import (
    MAMBA,
    MAMBA_DEFAULTS,
    MAMBA_OFF,
    mamba_shape,
)
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, all_in, ignored
from model_server.models.layers.activations import activation_of, gated
from model_server.models.layers.decoder import Decoder
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.layers import live_of
from model_server.models.layers.rope import Rotary, rope_of
from model_server.models.layers.state_space import StateSpace, StateSpaceShape
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError


class AttendingHalf(nnx.Module):
    """Maps a stream f32[T, D], with anything behind it, to the stream and what attention found."""

    def __init__(
        self, norm: nnx.Module, attention: nnx.Module, *, factor: float, out_factor: float
    ) -> None:
        self.norm = norm
        self.attention = attention
        self.factor = factor  # of the input
        self.out_factor = out_factor

    def __call__(
        self, x: jax.Array, rotation: Rotary | None, pages: LayerPages, batch: PagedBatch
    ) -> tuple[jax.Array, LayerPages]:
        """Maps f32[T, 2 D] to f32[T, 2 D]."""
        stream = x[:, : x.shape[1] // 2]
        mixed, pages = self.attention(self.norm(stream) * self.factor, rotation, pages, batch)
        return jnp.concatenate([stream, rounded(mixed * self.out_factor)], axis=-1), pages


class RecurrentHalf(nnx.Module):
    """Adds what attention found, the output of a state space, and a feed-forward."""

    def __init__(
        self,
        norm: nnx.Module,
        mixer: StateSpace,
        before_ffw: nnx.Module,
        ffw: nnx.Module,
        *,
        factor: float,
        out_factor: float,
    ) -> None:
        self.norm = norm
        self.mixer = mixer
        self.before_ffw = before_ffw
        self.ffw = ffw
        self.factor = factor  # of the mixer's input
        self.out_factor = out_factor

    def __call__(
        self, x: jax.Array, rotation: Rotary | None, pages: State, batch: PagedBatch
    ) -> tuple[jax.Array, State]:
        """Maps f32[T, 2 D] to f32[T, 2 D], of which the first half counts."""
        stream, attended = jnp.split(x, 2, axis=1)
        mixed, pages = self.mixer(self.norm(stream) * self.factor, rotation, pages, batch)
        stream = stream + rounded(mixed * self.out_factor) + attended
        stream = stream + self.ffw(self.before_ffw(stream))
        return jnp.concatenate([stream, jnp.zeros_like(stream)], axis=-1), pages


class HalvedDecoder(Decoder):
    """A decoder of such halves."""

    def embed(self, tokens: jax.Array, positions: jax.Array, media: Any = None) -> jax.Array:
        """Returns f32[T, 2 D], the input of the first half; it takes no media."""
        assert media is None, "models of this kind see no images"
        x = super().embed(tokens, positions)
        return jnp.concatenate([x, jnp.zeros_like(x)], axis=-1)


class StreamNorm(nnx.Module):
    """The last norm, of the stream alone."""

    def __init__(self, norm: nnx.Module) -> None:
        self.norm = norm

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f32[T, 2 D] to f32[T, D]."""
        return self.norm(x[:, : x.shape[1] // 2])


class ScaledFeedForward(GatedFeedForward):
    """A gated feed-forward with a factor of the gate and one of the output."""

    def __init__(
        self, embed: int, ffw: int, *, factor: float, out_factor: float, **rest: Any
    ) -> None:
        super().__init__(embed, ffw, **rest)
        self.factor, self.out_factor = factor, out_factor

    def __call__(self, x: jax.Array) -> jax.Array:
        opening, up = self.gate_up(x)
        passed = gated(self.activation, opening * self.factor, up, live_of(self))
        return rounded(self.down(passed) * self.out_factor)


_FACTORS = (
    "attention_in_multiplier",
    "attention_out_multiplier",
    "embedding_multiplier",
    "key_multiplier",
    "lm_head_multiplier",
    "ssm_in_multiplier",
    "ssm_out_multiplier",
)
KEYS = KnownKeys(
    "falcon_h1",
    (
        *DECODER,
        *MAMBA,
        *_FACTORS,
        "attention_bias",
        "mamba_d_ssm",
        "mamba_norm_before_gate",
        "mamba_rms_norm",
        "mlp_bias",
        "mlp_multipliers",
        "projectors_bias",
        "ssm_multipliers",
    ),
    # Notes of the training; the kinds of layers are all the same.
    {
        **DECODER_OFF,
        **MAMBA_OFF,
        **ignored("attn_layer_indices", "mamba_use_mlp", "mlp_expansion_factor"),
        "layer_types": all_in("hybrid"),
        "layers_block_type": all_in("hybrid"),
    },
)
DEFAULTS = {
    **MAMBA_DEFAULTS,
    **dict.fromkeys(_FACTORS, 1.0),
    "mamba_d_ssm": 1024,
    "mamba_norm_before_gate": True,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
}


def numbers_of(keys: ConfigKeys, key: str, count: int) -> tuple[float, ...]:
    """Return the factors under a key, 1 if it is not there. Raises CheckpointError."""
    given = keys.get(key, [1.0] * count)
    if not isinstance(given, list) or [type(x) in (int, float) for x in given] != [True] * count:
        raise CheckpointError(f"config.json has {key} = {given!r}; give {count} numbers")
    return tuple(map(float, given))


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, DEFAULTS)
    shape, mamba, layers = attention_shape(keys), _mamba(keys), keys.whole("num_hidden_layers")
    # A factor of the keys is one of the scores.
    shape = replace(shape, scale=shape.scale * keys.number("key_multiplier"))
    attention, ffw = biased_attention(keys), _ffw(keys)

    def layer(index: int, form: WeightForm) -> nnx.Module:
        prefix = f"model.layers.{index // 2}"
        norm = norm_of(keys, f"{prefix}.input_layernorm")
        if index % 2 == 0:
            return AttendingHalf(
                norm,
                attention(prefix, shape, form),
                factor=keys.number("attention_in_multiplier"),
                out_factor=keys.number("attention_out_multiplier"),
            )
        return RecurrentHalf(
            norm,
            StateSpace(mamba, f"{prefix}.mamba", form),
            norm_of(keys, f"{prefix}.pre_ff_layernorm"),
            ffw(f"{prefix}.feed_forward", form),
            factor=keys.number("ssm_in_multiplier"),
            out_factor=keys.number("ssm_out_multiplier"),
        )

    recipe = decoder_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shape=shape,
        ropes=[rope_of(keys.all, shape.head_dim), None] * layers,
        layer=layer,
        norm=lambda _: StreamNorm(norm_of(keys, "model.final_layernorm")),
        embedding_scale=lambda _: keys.number("embedding_multiplier"),
        logits_scale=keys.number("lm_head_multiplier"),
        states=lambda shards: (None, mamba.states(shards)) * layers,
        kind=HalvedDecoder,
    )
    return replace(recipe, carried=2 * shape.embed)


def _mamba(keys: ConfigKeys) -> StateSpaceShape:
    inner = keys.whole("mamba_d_ssm", int(keys.number("mamba_expand") * keys.whole("hidden_size")))
    return replace(
        mamba_shape(keys, keys.number("rms_norm_eps"), inner),
        out_biased=keys.flag("projectors_bias"),
        normed=keys.flag("mamba_rms_norm"),
        norms_first=keys.flag("mamba_norm_before_gate"),
        factors=numbers_of(keys, "ssm_multipliers", 5),
    )


def _ffw(keys: ConfigKeys) -> Any:
    embed, ffw, biased = (
        keys.whole("hidden_size"),
        keys.whole("intermediate_size"),
        keys.flag("mlp_bias"),
    )
    activation = activation_of(keys.get("hidden_act", "silu"))
    factor, out_factor = numbers_of(keys, "mlp_multipliers", 2)

    def build(prefix: str, form: WeightForm) -> ScaledFeedForward:
        names = [f"{prefix}.{part}_proj" for part in ("gate", "up", "down")]
        gate, up, down = ((f"{name}.weight",) for name in names)
        biases = tuple((f"{name}.bias",) for name in names) if biased else None
        rest = {"gate": gate, "up": up, "down": down, "biases": biases, "form": form}
        return ScaledFeedForward(
            embed, ffw, factor=factor, out_factor=out_factor, activation=activation, **rest
        )

    return build


FAMILY = Family("falcon_h1", ("falcon_h1",), "Falcon-H1", configure, own_types_only=True)
