"""Decoders of gated delta networks and gated attention, as Hugging Face names their parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys, kinds_of_layers
from model_server.models.families.decoder_recipe import BuildFfw, decoder_recipe, norm_of, rms_norms
from model_server.models.families.own_heads import QWEN, own_head
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.delta_net import DeltaShape
from model_server.models.layers.layers import RmsNorm
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.layers.rope import Rope
from model_server.models.recipe import Recipe, serving
from model_server.models.weights.source import GroupRows, Tensor, cut
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

DELTA = (
    "attention_bias",
    "full_attention_interval",
    "layer_types",
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_value_head_dim",
    "partial_rotary_factor",
)


DELTA_DEFAULTS = {
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 32768,
    "partial_rotary_factor": 0.25,
}


def delta_recipe(
    keys: ConfigKeys,
    values: Mapping[str, Any],
    shape: AttentionShape,
    delta: DeltaShape,
    attends: list[bool],
    layer: Any,
    rope: Rope,
    ffw: BuildFfw,
) -> Recipe:
    """Build the recipe of a decoder in which some layers attend and the others are delta nets.

    ffw: of the layer that drafts.
    """

    def drafting(prefix: str, form: WeightForm) -> PreNormLayer:
        return PreNormLayer(
            norm_of(keys, f"{prefix}.input_layernorm", plus_one=True),
            gated_attention(keys, prefix, shape, form),
            norm_of(keys, f"{prefix}.post_attention_layernorm", plus_one=True),
            ffw(prefix, form),
        )

    made = decoder_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shape=shape,
        ropes=[rope if its else None for its in attends],
        layer=layer,
        plus_one=True,
        states=lambda shards: tuple(None if its else delta.states(shards) for its in attends),
    )
    head = own_head(keys, QWEN, drafting, rope, norm=rms_norms(keys, plus_one=True))
    counted = keys.all.get("mtp_num_hidden_layers", 1), keys.all.get("mtp_use_dedicated_embeddings")
    there = counted[0] and not counted[1]
    return replace(made, unused=("mtp.",), own_head=head if there else None)


def delta_shape(keys: ConfigKeys) -> DeltaShape:
    """Return the delta nets' sizes. Raises CheckpointError."""
    keys.only("hidden_act", "silu")  # of the convolutions as well
    key_heads = keys.whole("linear_num_key_heads")
    value_heads = keys.whole("linear_num_value_heads")
    if value_heads % key_heads:
        raise CheckpointError(
            f"config.json has linear_num_value_heads = {value_heads}, which linear_num_key_heads = "
            f"{key_heads} does not divide"
        )
    return DeltaShape(
        embed=keys.whole("hidden_size"),
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=keys.whole("linear_key_head_dim"),
        value_dim=keys.whole("linear_value_head_dim"),
        width=keys.whole("linear_conv_kernel_dim"),
        epsilon=keys.number("rms_norm_eps", 1e-6),
    )


def attending(keys: ConfigKeys) -> list[bool]:
    """One flag per layer: True if it attends. Raises CheckpointError."""
    found = kinds_of_layers(keys, {"linear_attention": False, "full_attention": True})
    if found is not None:
        return found
    every = keys.whole("full_attention_interval", 4)
    return [(index + 1) % every == 0 for index in range(keys.whole("num_hidden_layers"))]


def gated_attention(
    keys: ConfigKeys,
    prefix: str,
    shape: AttentionShape,
    form: WeightForm,
    kind: type[Attention] = Attention,
) -> Attention:
    """Attention whose queries come with a gate, head by head."""
    name, size, biased = f"{prefix}.self_attn", shape.head_dim, keys.flag("attention_bias")
    if biased:
        raise CheckpointError(f"the {keys.family} family supports attention_bias = False")
    both = Tensor(f"{name}.q_proj.weight")
    sources = AttentionSources.hugging_face(name)
    q, gate = (GroupRows(both, 2 * size, at, at + size, groups=shape.heads) for at in (0, size))
    q_norm, k_norm = (
        RmsNorm(
            size,
            (f"{name}.{part}.weight",),
            epsilon=keys.number("rms_norm_eps", 1e-6),
            plus_one=True,
        )
        for part in ("q_norm", "k_norm")
    )
    return kind(shape, replace(sources, q=q, gate=gate), form, q_norm=q_norm, k_norm=k_norm)


def rest_of(shape: DeltaShape, name: str) -> dict[str, Any]:
    """Sources of a layer beside its input projections."""
    ends = [sum(shape.parts[: at + 1]) for at in range(3)]
    conv = Tensor(f"{name}.conv1d.weight")
    starts = zip([0, *ends[:2]], ends, strict=True)
    return {
        "convolutions": tuple(cut(conv, start, end, of=ends[2]) for start, end in starts),
        "log_decay": (f"{name}.A_log",),
        "decay_bias": (f"{name}.dt_bias",),
        "norm": (f"{name}.norm.weight",),
        "out": (f"{name}.out_proj.weight",),
    }
