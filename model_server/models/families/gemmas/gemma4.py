"""Gemma 4: larger heads where all is seen, shared keys, inputs per layer, experts beside the rest.

What hears is `media/gemma_sounds`, what sees `media/gemma4_vision_encoder`.
Source: Google 2026, "Gemma 4"; names and config keys are those of Hugging Face's
`Gemma4ForCausalLM` and `Gemma4ForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import HeadShape, LayerPages
from model_server.kernels.row_sums import rounded
from model_server.models.config_keys import ConfigKeys, sliding_layers
from model_server.models.families.decoder_recipe import norm_of
from model_server.models.families.gemmas.lending_recipe import (
    Norms,
    activation_in,
    epsilon_of,
    gate_of,
    lenders_of,
    lending_recipe,
    norms_of,
)
from model_server.models.families.llama import attention_shape
from model_server.models.families.ropes import FULL, SLIDING, settings_of
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored
from model_server.models.layers.attention import AttentionShape
from model_server.models.layers.experts import Experts, ExpertSources
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.layers import UnitNorm
from model_server.models.layers.lending import KeysValues, LentAttention, PerLayerGate
from model_server.models.layers.rope import Rope, Rotary, rope_of
from model_server.models.layers.routing import Router, Routes, SoftmaxChoice, checked_count
from model_server.models.media.gemma4_vision_encoder import IMAGE_KEYS, gemma4_vision
from model_server.models.media.gemma_sounds import SOUND_KEYS, gemma4_sounds
from model_server.models.recipe import Family, Recipe
from model_server.models.weights.weight import WeightForm, weight
from sax.errors import CheckpointError


class ScaledRouter(nnx.Module):
    """A router behind a norm, whose weights have a factor for each expert."""

    def __init__(
        self, router: Router, embed: int, experts: int, prefix: str, *, epsilon: float
    ) -> None:
        self.router, self.norm, self.shrink = router, UnitNorm(epsilon), embed**-0.5

        def vector(name: str, size: int) -> nnx.Param:
            return weight((size,), (None,), (f"{prefix}.{name}",), dtype=jnp.float32)

        self.scale = vector("scale", embed)
        self.of_experts = vector("per_expert_scale", experts)

    def __call__(self, x: jax.Array) -> Routes:
        routes = self.router(self.norm(x) * (self.scale[...] * self.shrink)[None])
        factors = self.of_experts[...].at[routes.experts].get(mode="promise_in_bounds")
        return Routes(routes.experts, routes.weights * factors)


class ExpertsBeside(nnx.Module):
    """Experts between norms of their own, added to a normed dense feed-forward."""

    def __init__(
        self,
        after_dense: nnx.Module,
        before: nnx.Module,
        router: ScaledRouter,
        experts: Experts,
        after: nnx.Module,
    ) -> None:
        self.after_dense = after_dense
        self.before = before
        self.router = router
        self.experts = experts
        self.after = after

    def __call__(self, x: jax.Array, dense: jax.Array) -> jax.Array:
        """Maps the layer's f32[T, D], and what its dense feed-forward made of it, to f32[T, D]."""
        routed = self.experts(self.before(x), self.router(x))
        return self.after_dense(dense) + self.after(routed)


class ScaledSandwichLayer(nnx.Module):
    """Four norms around two halves, then a gate for the layer's own inputs, and a factor of all."""

    def __init__(
        self,
        norms: Norms,
        attention: LentAttention,
        ffw: nnx.Module,
        scale: str,  # tensor
        *,
        experts: ExpertsBeside | None,
        gate: PerLayerGate | None,
    ) -> None:
        self.before_attention, self.after_attention, self.before_ffw, self.after_ffw = norms
        self.attention = attention
        self.ffw = ffw
        self.experts = experts
        self.gate = gate
        self.scale = weight((1,), (None,), (scale,), dtype=jnp.float32)

    def __call__(
        self,
        x: jax.Array,  # f32[T, D]
        own: jax.Array,  # f32[T, P]
        rotation: Rotary,
        pages: LayerPages,
        lent: KeysValues | None,
        batch: PagedBatch,
    ) -> tuple[jax.Array, LayerPages, KeysValues]:
        mixed, pages, lent = self.attention(self.before_attention(x), rotation, pages, lent, batch)
        x = x + self.after_attention(mixed)
        made = self.ffw(self.before_ffw(x))
        x = x + self.after_ffw(made if self.experts is None else self.experts(x, made))
        if self.gate is not None:
            x = x + self.gate(x, own)
        return rounded(x * self.scale[...][None]), pages, lent


# Tokens around those of sounds and images, and how many an image once had.
_UNUSED = ignored(
    "boa_token_id",
    "boi_token_id",
    "eoa_token_id",
    "eoa_token_index",
    "eoi_token_id",
    "vision_soft_tokens_per_image",
)
KEYS = KnownKeys(
    "gemma4",
    (
        *DECODER,
        "attention_bias",
        "attention_k_eq_v",
        "enable_moe_block",
        "final_logit_softcapping",
        "global_head_dim",
        "hidden_activation",
        "hidden_size_per_layer_input",
        "layer_types",
        "moe_intermediate_size",
        "num_experts",
        "num_global_key_value_heads",
        "num_kv_shared_layers",
        "per_layer_config",
        "sliding_window",
        "top_k_experts",
        "use_bidirectional_attention",
        "use_double_wide_mlp",
        "vocab_size_per_layer_input",
        "pad_token_id",
        *dict.fromkeys((*IMAGE_KEYS, *SOUND_KEYS)),
    ),
    {**DECODER_OFF, **_UNUSED},
)
DEFAULTS = {
    "global_head_dim": 512,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2304,
    "hidden_size_per_layer_input": 256,
    "intermediate_size": 9216,
    "max_position_embeddings": 131072,
    "num_attention_heads": 8,
    "num_hidden_layers": 30,
    "num_key_value_heads": 4,
    "num_kv_shared_layers": 0,
    "sliding_window": 512,
    "vocab_size": 262144,
    "vocab_size_per_layer_input": 262144,
}
_ROPES = {
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
}


def slides_of(keys: ConfigKeys) -> list[bool]:
    """Return one flag per layer: True if it has a window; the last one never has."""
    return [*sliding_layers(keys, lambda index: (index + 1) % 6 != 0)[:-1], False]


def shapes_of(keys: ConfigKeys) -> tuple[AttentionShape, AttentionShape]:
    """Return the shapes of layers that see everything, and of those with a window."""
    local = replace(attention_shape(keys), scale=1.0, window=keys.whole("sliding_window"))
    size, kv_heads = _larger_heads(keys, local) or _global_heads(keys, local)
    return replace(local, head_dim=size, kv_heads=kv_heads, window=None), local


def _global_heads(keys: ConfigKeys, local: AttentionShape) -> tuple[int, int]:
    """Return size and number of the KV heads of layers without a window, as published files do."""
    kv_heads = local.kv_heads
    if keys.flag("attention_k_eq_v"):
        kv_heads = keys.whole("num_global_key_value_heads", kv_heads)
    return keys.whole("global_head_dim"), kv_heads


def _larger_heads(keys: ConfigKeys, local: AttentionShape) -> tuple[int, int] | None:
    """Return them as transformers 5 writes them, layer by layer; None: it did not.

    Raises CheckpointError.
    """
    given = keys.get("per_layer_config")
    if given is None:
        return None
    sizes = {"head_dim": local.head_dim, "num_key_value_heads": local.kv_heads}
    whole = {str(index) for index, slides in enumerate(slides_of(keys)) if not slides}
    fits = isinstance(given, Mapping) and {str(index) for index in given} == whole
    found = list(given.values()) if fits else []
    if not fits or any(each != found[0] or not _is_sizes(each, sizes) for each in found):
        raise CheckpointError(
            f"config.json has per_layer_config = {given!r}; the gemma4 family needs the same "
            f"{' and '.join(sizes)} for all layers without a window, and nothing for the others"
        )
    made = sizes | dict(found[0])
    return made["head_dim"], made["num_key_value_heads"]


def _is_sizes(given: object, sizes: Mapping[str, int]) -> bool:
    if not isinstance(given, Mapping) or not given.keys() <= sizes.keys():
        return False
    return all(type(value) is int and value > 0 for value in given.values())


def ropes_of(keys: ConfigKeys, whole: int, local: int) -> tuple[Rope, Rope]:
    """Return the ropes of full and of sliding layers, whose heads have these sizes."""
    given = settings_of(keys) or _ROPES
    if not all(isinstance(given.get(kind), Mapping) for kind in _ROPES):
        raise CheckpointError(
            f"config.json has rope_parameters = {given!r}; the gemma4 family needs those of "
            f"{FULL} and {SLIDING}"
        )
    context = {"max_position_embeddings": keys.whole("max_position_embeddings")}
    sizes = {FULL: whole, SLIDING: local}
    made = {
        kind: rope_of(context | {"rope_parameters": given[kind]}, sizes[kind]) for kind in sizes
    }
    return made[FULL], made[SLIDING]


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, DEFAULTS)
    keys.only("use_bidirectional_attention", None, "vision")
    slides = slides_of(keys)
    lenders, (whole, local) = lenders_of(keys, slides), shapes_of(keys)
    of_whole, of_local = ropes_of(keys, whole.head_dim, local.head_dim)
    gated = keys.whole("hidden_size_per_layer_input", least=0) > 0
    sees = keys.get("use_bidirectional_attention") is not None and any(slides)
    joined = local.window if sees else None

    def layer(index: int, form: WeightForm) -> ScaledSandwichLayer:
        name, borrows = f"model.layers.{index}", lenders[index] is not None
        attention = LentAttention(
            local if slides[index] else whole,
            f"{name}.self_attn",
            form,
            epsilon=epsilon_of(keys),
            borrows=borrows,
            keys_as_values=keys.flag("attention_k_eq_v") and not slides[index],
            biased=keys.flag("attention_bias"),
        )
        return ScaledSandwichLayer(
            norms_of(keys, name),
            attention,
            _dense(keys, name, form, wide=borrows and keys.flag("use_double_wide_mlp")),
            f"{name}.layer_scalar",
            experts=_experts(keys, name, form) if keys.flag("enable_moe_block") else None,
            gate=gate_of(keys, name, form) if gated else None,
        )

    other = HeadShape(whole.kv_heads, whole.head_dim, whole.head_dim)
    differs = (whole.kv_heads, whole.head_dim) != (local.kv_heads, local.head_dim)
    return lending_recipe(
        keys,
        values,
        shape=local,
        lenders=lenders,
        ropes=[of_local if slide else of_whole for slide in slides],
        windows=[local.window if slide else None for slide in slides],
        layer=layer,
        others=[
            other if differs and not slide and lender is None else None
            for slide, lender in zip(slides, lenders, strict=True)
        ],
        media=[
            gemma4_vision(keys, values, local.embed, joined),
            gemma4_sounds(keys, local.embed),
        ],
        filler=keys.whole("pad_token_id", 0, least=0),
    )


def _dense(keys: ConfigKeys, name: str, form: WeightForm, *, wide: bool) -> GatedFeedForward:
    return GatedFeedForward.hugging_face(
        keys.whole("hidden_size"),
        keys.whole("intermediate_size") * (2 if wide else 1),
        f"{name}.mlp",
        activation=activation_in(keys),
        form=form,
    )


def _experts(keys: ConfigKeys, name: str, form: WeightForm) -> ExpertsBeside:
    embed, count = keys.whole("hidden_size"), keys.whole("num_experts")
    ffw, router = keys.whole("moe_intermediate_size"), f"{name}.router"
    choice = SoftmaxChoice(checked_count(keys, count, "top_k_experts"), normalised=True)
    sources = ExpertSources.together(
        count, ffw, gate_up=f"{name}.experts.gate_up_proj", down=f"{name}.experts.down_proj"
    )
    routed = Router(embed, count, choice, (f"{router}.proj.weight",))
    after_dense, before, after = (
        norm_of(keys, f"{name}.{part}")
        for part in (
            "post_feedforward_layernorm_1",
            "pre_feedforward_layernorm_2",
            "post_feedforward_layernorm_2",
        )
    )
    return ExpertsBeside(
        after_dense,
        before,
        ScaledRouter(routed, embed, count, router, epsilon=epsilon_of(keys)),
        Experts(embed, ffw, sources, activation=activation_in(keys), form=form),
        after,
    )


FAMILY = Family("gemma4", ("gemma4_text", "gemma4"), "Gemma 4", configure, own_types_only=True)
