"""Command R, Aya 23: parallel halves behind one layer norm without bias, logits scaled.

Source: Cohere 2024, "Command R", and Aryabumi et al. 2024 (arXiv:2405.15032); names and config
keys are those of Hugging Face's `CohereForCausalLM`, which rotates neighbouring dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import (
    BuildAttention,
    BuildFfw,
    BuildNorm,
    decoder_recipe,
    gated_ffw,
)
from model_server.models.families.llama import attention_shape
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored, one_of
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.layers import LayerNorm, OwnHeadNorm
from model_server.models.layers.pre_norm import ParallelLayer
from model_server.models.layers.rope import Rope, rope_of
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.sharding import split_heads
from model_server.models.weights.source import RepeatedGroups, Tensor
from model_server.models.weights.weight import WeightForm

COMPUTED = (
    *DECODER,
    "attention_bias",
    "layer_norm_eps",
    "logit_scale",
    "model_max_length",
    "use_qk_norm",
)
OFF = {
    **DECODER_OFF,
    **ignored("use_embedding_sharing", "use_parallel_embedding"),
    "position_embedding_type": one_of("rope_gptj"),
    "rotary_pct": one_of(1.0),
    "use_gated_activation": one_of(True),
    "use_parallel_block": one_of(True),
}
KEYS = KnownKeys("cohere", COMPUTED, OFF)
DEFAULTS = {
    "logit_scale": 0.0625,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
_BASE = {"rope_theta": 500000.0}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, DEFAULTS | _BASE)
    shape, layers = attention_shape(keys), keys.whole("num_hidden_layers")
    return parallel_recipe(
        keys,
        serving(values, context_of(keys)),
        shapes=[shape] * layers,
        ropes=[interleaved_rope(keys, shape)] * layers,
    )


def context_of(keys: ConfigKeys) -> int:
    """Command R was trained on longer texts than its max_position_embeddings says."""
    return keys.whole("model_max_length", keys.whole("max_position_embeddings"))


def interleaved_rope(keys: ConfigKeys, shape: AttentionShape) -> Rope:
    return rope_of(keys.all, shape.head_dim, interleaved=True)


def parallel_recipe(
    keys: ConfigKeys,
    served: Mapping[str, Any],
    *,
    shapes: Sequence[AttentionShape],
    ropes: Sequence[Rope | None],
    ffws: Sequence[BuildFfw] = (),
    norm: BuildNorm | None = None,
) -> Recipe:
    """Build a recipe over layers whose halves share a norm.

    shapes, ropes, ffws: one per layer; () of ffws: gated ones. norm: None: without a bias.
    """
    attention, usual, norm = _attention(keys), gated_ffw(keys), norm or _norms(keys)

    def layer(index: int, form: WeightForm) -> ParallelLayer:
        prefix = f"model.layers.{index}"
        return ParallelLayer(
            norm(f"{prefix}.input_layernorm"),
            attention(prefix, shapes[index], form),
            None,
            (ffws[index] if ffws else usual)(prefix, form),
        )

    return decoder_recipe(
        keys,
        served,
        shape=shapes[0],
        ropes=ropes,
        layer=layer,
        norm=norm,
        windows=[shape.window for shape in shapes],
        logits_scale=keys.number("logit_scale"),
    )


def _norms(keys: ConfigKeys) -> BuildNorm:
    embed, epsilon = keys.whole("hidden_size"), keys.number("layer_norm_eps", 1e-5)
    return lambda name: LayerNorm(embed, (f"{name}.weight",), None, epsilon=epsilon)


def _attention(keys: ConfigKeys) -> BuildAttention:
    biased, normed = keys.flag("attention_bias"), keys.flag("use_qk_norm")
    epsilon = keys.number("layer_norm_eps", 1e-5)

    def build(prefix: str, shape: AttentionShape, form: WeightForm) -> Attention:
        name, size = f"{prefix}.self_attn", shape.head_dim
        sources = AttentionSources.hugging_face(name, biased=biased, out_biased=biased)
        if not normed:
            return Attention(shape, sources, form)
        split = split_heads(shape.heads, shape.kv_heads, form.layout.shards("heads"))
        q_scale = Tensor(f"{name}.q_norm.weight")
        k_scale = RepeatedGroups(Tensor(f"{name}.k_norm.weight"), 1, split.copies)
        return Attention(
            shape,
            sources,
            form,
            q_norm=OwnHeadNorm(shape.heads, size, q_scale, split.axis, epsilon=epsilon),
            k_norm=OwnHeadNorm(split.kv_heads, size, k_scale, split.axis, epsilon=epsilon),
        )

    return build


FAMILY = Family("cohere", ("cohere",), "Command R, Command R+, Aya 23", configure)
