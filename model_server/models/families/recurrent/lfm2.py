"""LFM2: gated short convolutions, and attention with normed queries and keys in some layers.

Source: Liquid AI 2025, "LFM2 Technical Report" (arXiv:2511.23404); names and config keys are those
of Hugging Face's `Lfm2ForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flax import nnx

from model_server.models.config_keys import ConfigKeys, kinds_of_layers
from model_server.models.families.decoder_recipe import BuildFfw, decoder_recipe
from model_server.models.families.llama import attention_shape
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored
from model_server.models.layers.activations import activation_of
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.convolution import ShortConvolution, ShortConvShape
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.layers import RmsNorm
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm

_FFW = ("block_auto_adjust_ff_dim", "block_ff_dim", "block_ffn_dim_multiplier", "block_multiple_of")
LFM2 = (
    *(key for key in DECODER if key not in ("hidden_act", "rms_norm_eps")),
    *("conv_L_cache", "conv_bias", "full_attn_idxs", "layer_types", "norm_eps", "tie_embedding"),
)
KEYS = KnownKeys(
    "lfm2",
    (*LFM2, *_FFW),
    # Copies of other keys in published files.
    {
        **DECODER_OFF,
        **ignored("block_dim", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale"),
        **ignored("block_use_swiglu", "block_use_xavier_init", "conv_dim", "conv_dim_out"),
        **ignored("conv_use_xavier_init", "num_heads", "theta", "use_pos_enc"),
    },
)
DEFAULTS = {
    "norm_eps": 1e-5,
    "rope_theta": 1e6,
    "max_position_embeddings": 128_000,
    "conv_L_cache": 3,
}
_DEFAULTS = {
    **DEFAULTS,
    "block_auto_adjust_ff_dim": True,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 256,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    ffw = dense_ffw(keys, _ffw_size(keys))
    return recipe_of(keys, values, lambda index: ffw)


def recipe_of(
    keys: ConfigKeys, values: Mapping[str, Any], ffw_of: Callable[[int], BuildFfw]
) -> Recipe:
    """Build the recipe of a decoder with these feed-forwards in its layers."""
    shape, epsilon = attention_shape(keys), keys.number("norm_eps")
    conv = ShortConvShape(embed=shape.embed, width=keys.whole("conv_L_cache"))
    attends, biased = attending(keys), keys.flag("conv_bias")
    if keys.get("tie_embedding") is not None:  # the older name counts, as in transformers
        keys.all["tie_word_embeddings"] = keys.get("tie_embedding")

    def norm(size: int, name: str) -> RmsNorm:
        return RmsNorm(size, (f"{name}.weight",), epsilon=epsilon)

    def mixer(index: int, prefix: str, form: WeightForm) -> nnx.Module:
        if attends[index]:
            return _attention(f"{prefix}.self_attn", shape, norm, form)
        return ShortConvolution(conv, f"{prefix}.conv", form, biased=biased)

    def layer(index: int, form: WeightForm) -> PreNormLayer:
        prefix = f"model.layers.{index}"
        return PreNormLayer(
            norm(shape.embed, f"{prefix}.operator_norm"),
            mixer(index, prefix, form),
            norm(shape.embed, f"{prefix}.ffn_norm"),
            ffw_of(index)(f"{prefix}.feed_forward", form),
        )

    rope = rope_of(keys.all, shape.head_dim)
    return decoder_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shape=shape,
        ropes=[rope if its else None for its in attends],
        layer=layer,
        norm=lambda _: norm(shape.embed, "model.embedding_norm"),
        tied=True,
        states=lambda shards: tuple(None if its else conv.states(shards) for its in attends),
    )


def dense_ffw(keys: ConfigKeys, size: int) -> BuildFfw:
    """Builder of a gated feed-forward from the prefix of its names."""
    embed, activation = keys.whole("hidden_size"), activation_of("silu")

    def build(name: str, form: WeightForm) -> GatedFeedForward:
        gate, up, down = ((f"{name}.{part}.weight",) for part in ("w1", "w3", "w2"))
        return GatedFeedForward(
            embed, size, gate=gate, up=up, down=down, activation=activation, form=form
        )

    return build


def _attention(name: str, shape: AttentionShape, norm: Any, form: WeightForm) -> Attention:
    sources = AttentionSources.hugging_face(name, out="out_proj")
    norms = {
        f"{part}_norm": norm(shape.head_dim, f"{name}.{part}_layernorm") for part in ("q", "k")
    }
    return Attention(shape, sources, form, **norms)


def attending(keys: ConfigKeys) -> list[bool]:
    """One flag per layer: True if it attends. Raises CheckpointError."""
    found = kinds_of_layers(keys, {"conv": False, "full_attention": True})
    if found is not None:
        return found
    layers = range(keys.whole("num_hidden_layers"))
    chosen = keys.get("full_attn_idxs", list(layers))
    return [index in chosen for index in layers]


def _ffw_size(keys: ConfigKeys) -> int:
    size = keys.whole("block_ff_dim", keys.whole("intermediate_size", 12288))
    if not keys.flag("block_auto_adjust_ff_dim"):
        return size
    size = int(keys.number("block_ffn_dim_multiplier") * int(2 * size / 3))
    multiple = keys.whole("block_multiple_of")
    return -(-size // multiple) * multiple


FAMILY = Family("lfm2", ("lfm2",), "LFM2", configure)
