"""Nemotron-H, Nemotron 3: each layer is one of Mamba-2, attention, a feed-forward or experts.

Source: NVIDIA 2025 (arXiv:2504.03624, arXiv:2512.20848); names and config keys are those of Hugging
Face's `NemotronHForCausalLM`. Queries and keys are not rotated; feed-forwards and experts square a
ReLU and are not gated. Multi-token-prediction layers of attention and experts may draft.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from flax import nnx

from model_server.models.config_keys import ConfigKeys, kinds_of_layers
from model_server.models.families.decoder_recipe import (
    BuildFfw,
    BuildNorm,
    decoder_recipe,
    embedding_of,
)
from model_server.models.families.llama import attention_shape
from model_server.models.families.own_heads import NEMOTRON, own_head
from model_server.models.families.recurrent.mixers import step_limits
from model_server.models.families.sigmoid_experts import ROUTED, sigmoid_choice
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored, one_of
from model_server.models.layers.activations import Activation, activation_of
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.experts import (
    Experts,
    ExpertSources,
    NarrowedExperts,
    RoutedFeedForward,
)
from model_server.models.layers.feed_forward import FeedForward
from model_server.models.layers.layers import Linear, RmsNorm
from model_server.models.layers.pre_norm import FeedForwardLayer, MixerLayer, PreNormLayer
from model_server.models.layers.routing import Router
from model_server.models.layers.state_space import StateSpace, StateSpaceShape
from model_server.models.recipe import Family, OwnHead, Recipe, serving
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

_SKIPPED = (
    *("first_k_dense_replace", "hidden_act", "num_nextn_predict_layers", "rms_norm_eps"),
    *("rope_parameters", "rope_scaling", "rope_theta", "tie_word_embeddings"),
)
_OTHERWISE = ("layer_types", "mlp_bias", "partial_rotary_factor")
KEYS = KnownKeys(
    "nemotron_h",
    (
        *(key for key in (*DECODER, *ROUTED) if key not in _SKIPPED),
        *("conv_kernel", "hybrid_override_pattern", "layer_norm_epsilon", "layer_types"),
        *("layers_block_type", "mamba_head_dim", "mamba_num_heads", "mlp_bias", "mlp_hidden_act"),
        *("attention_head_dim", "moe_latent_size", "moe_shared_expert_intermediate_size"),
        *("n_groups", "ssm_state_size", "time_step_limit", "use_bias", "use_conv_bias"),
    ),
    {
        **{key: off for key, off in DECODER_OFF.items() if key not in _OTHERWISE},
        # How steps are drawn before training and how products are divided. Of time_step_min,
        # transformers makes a least step, but only of several tokens at once; NVIDIA's own code
        # does not, and obeys time_step_limit as here.
        **ignored("chunk_size", "mamba_ssm_cache_dtype", "num_logits_to_keep", "use_mamba_kernels"),
        **ignored("expand", "rescale_prenorm_residual", "residual_in_fp32", "time_step_rank"),
        **ignored("time_step_floor", "time_step_max", "time_step_min", "moe_shared_expert_overlap"),
        # Layers that draft further tokens; the rope and norm of other decoders; the head is its own
        # whatever the config says, and so are the biases of Mamba layers, by use_bias.
        **ignored("mtp_hybrid_override_pattern", "mtp_layers_block_type", "mamba_proj_bias"),
        **ignored("norm_eps", "partial_rotary_factor", *_SKIPPED),
        "mamba_hidden_act": one_of("silu"),
    },
)
DEFAULTS = {
    "conv_kernel": 4,
    "layer_norm_epsilon": 1e-5,
    "mamba_head_dim": 64,
    "mamba_num_heads": 128,
    "max_position_embeddings": 4096,
    "n_groups": 8,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 8,
    "routed_scaling_factor": 1.0,
    "ssm_state_size": 128,
}
MAMBA, ATTENTION, FFW, EXPERTS = "mamba", "attention", "mlp", "moe"
_KINDS = {kind: kind for kind in (MAMBA, ATTENTION, FFW, EXPERTS)}
_KINDS |= {"linear_attention": MAMBA, "full_attention": ATTENTION}
_LETTERS = {"M": MAMBA, "*": ATTENTION, "-": FFW, "E": EXPERTS}


def kinds_of(keys: ConfigKeys) -> list[str]:
    """Return the kind of each layer. Raises CheckpointError."""
    for key in ("layers_block_type", "layer_types"):
        if (found := kinds_of_layers(keys, _KINDS, key)) is not None:
            return found
    layers, pattern = keys.whole("num_hidden_layers"), keys.get("hybrid_override_pattern")
    if not isinstance(pattern, str) or len(pattern) != layers or not {*pattern} <= _LETTERS.keys():
        raise CheckpointError(
            f"config.json has hybrid_override_pattern = {pattern!r}; the nemotron_h family needs "
            f"one of the letters {' '.join(_LETTERS)} for each of {layers} layers"
        )
    return [_LETTERS[letter] for letter in pattern]


def mamba_shape(keys: ConfigKeys) -> StateSpaceShape:
    """Return the sizes of the Mamba layers. Raises CheckpointError."""
    heads, groups = keys.whole("mamba_num_heads"), keys.whole("n_groups")
    if heads % groups:
        raise CheckpointError(
            f"config.json has mamba_num_heads = {heads}, which n_groups = {groups} does not divide"
        )
    least, most = step_limits(keys)
    return StateSpaceShape(
        embed=keys.whole("hidden_size"),
        heads=heads,
        head_dim=keys.whole("mamba_head_dim"),
        groups=groups,
        state=keys.whole("ssm_state_size"),
        width=keys.whole("conv_kernel"),
        epsilon=keys.number("layer_norm_epsilon"),
        norm_groups=groups,
        biased=keys.flag("use_bias"),
        conv_biased=keys.flag("use_conv_bias", True),
        least_step=least,
        most_step=most,
    )


def plain_ffw(keys: ConfigKeys, width: str = "intermediate_size") -> BuildFfw:
    """Builder of a feed-forward from the prefix of its names; width: the config's key for it."""
    embed, ffw, biased = keys.whole("hidden_size"), keys.whole(width), keys.flag("mlp_bias")
    activation = _activation(keys)

    def build(name: str, form: WeightForm) -> FeedForward:
        up, down = f"{name}.up_proj", f"{name}.down_proj"
        return FeedForward(
            embed,
            ffw,
            up=(f"{up}.weight",),
            down=(f"{down}.weight",),
            activation=activation,
            form=form,
            biases=((f"{up}.bias",), (f"{down}.bias",)) if biased else None,
        )

    return build


def routed_ffw(keys: ConfigKeys) -> BuildFfw:
    """Builder of experts beside a feed-forward that every token uses."""
    embed, ffw = keys.whole("hidden_size"), keys.whole("moe_intermediate_size")
    experts, latent = keys.whole("n_routed_experts"), keys.whole_or_none("moe_latent_size")
    choice, activation = sigmoid_choice(keys, experts), _activation(keys)
    shared, biased = plain_ffw(keys, "moe_shared_expert_intermediate_size"), keys.flag("mlp_bias")
    keys.only("n_shared_experts", 1)

    def build(name: str, form: WeightForm) -> RoutedFeedForward:
        def projected(outputs: int, inputs: int, name: str) -> Linear:
            bias = (f"{name}.bias",) if biased else None
            axes = (None, "embed") if inputs == embed else ("embed", None)
            return Linear(outputs, inputs, axes, (f"{name}.weight",), form=form, bias=bias)

        def of_experts(width: int) -> Experts:
            sources = ExpertSources.hugging_face(
                f"{name}.experts", experts, gate=None, up="up_proj", down="down_proj"
            )
            return Experts(width, ffw, sources, activation=activation, form=form)

        narrowed = latent and NarrowedExperts(
            projected(latent, embed, f"{name}.fc1_latent_proj"),
            of_experts(latent),
            projected(embed, latent, f"{name}.fc2_latent_proj"),
        )
        gate = f"{name}.gate"
        bias = (f"{gate}.e_score_correction_bias",)
        return RoutedFeedForward(
            Router(embed, experts, choice, (f"{gate}.weight",), bias=bias),
            narrowed or of_experts(embed),
            shared(f"{name}.shared_experts", form),
        )

    return build


def _activation(keys: ConfigKeys) -> Activation:
    return activation_of(keys.get("mlp_hidden_act", "relu2"))


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, DEFAULTS)
    kinds, shape, mamba = kinds_of(keys), _attention_shape(keys), mamba_shape(keys)
    build = {FFW: plain_ffw, EXPERTS: routed_ffw}
    ffws: dict[str, Callable[[str, WeightForm], nnx.Module]] = {
        kind: build[kind](keys) for kind in build if kind in kinds
    }

    def norm(name: str) -> RmsNorm:
        return RmsNorm(shape.embed, (f"{name}.weight",), epsilon=mamba.epsilon)

    def head(form: WeightForm) -> Linear:
        vocab, axes = keys.whole("vocab_size"), ("vocab", "embed")
        return Linear(vocab, shape.embed, axes, ("lm_head.weight",), form=form)

    def layer(index: int, form: WeightForm) -> nnx.Module:
        prefix, kind = f"backbone.layers.{index}", kinds[index]
        before, name = norm(f"{prefix}.norm"), f"{prefix}.mixer"
        if kind in ffws:
            return FeedForwardLayer(before, ffws[kind](name, form))
        if kind == MAMBA:
            return MixerLayer(before, StateSpace(mamba, name, form))
        return MixerLayer(before, Attention(shape, AttentionSources.hugging_face(name), form))

    def states(shards: int) -> Any:
        kept = {MAMBA: mamba.states(shards), ATTENTION: None}
        return tuple(kept.get(kind, ()) for kind in kinds)

    made = decoder_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shape=shape,
        ropes=[None] * len(kinds),
        layer=layer,
        norm=lambda _: norm("backbone.norm_f"),
        head=head,
        table="backbone.embeddings",
        states=states,
    )
    return replace(made, unused=("mtp.",), own_head=_own_head(keys, shape, norm, head))


# Of layers that draft: their kinds, as a list or in letters.
_DRAFTING = ("mtp_layers_block_type", [ATTENTION, EXPERTS]), ("mtp_hybrid_override_pattern", "*E")


def _own_head(
    keys: ConfigKeys, shape: AttentionShape, norm: BuildNorm, head: Callable[[WeightForm], Linear]
) -> OwnHead | None:
    """Return the layers that draft, attention and experts; None: there are none, or others."""
    there = any(keys.all.get(key) == kinds for key, kinds in _DRAFTING)
    if not there or not keys.all.get("num_nextn_predict_layers", 1):
        return None
    routed = routed_ffw(keys)

    def layer(prefix: str, form: WeightForm) -> PreNormLayer:
        return PreNormLayer(
            norm(f"{prefix}.0.norm"),
            Attention(shape, AttentionSources.hugging_face(f"{prefix}.0.mixer"), form),
            norm(f"{prefix}.1.norm"),
            routed(f"{prefix}.1.mixer", form),
        )

    table = partial(embedding_of, keys, table="backbone.embeddings")
    return own_head(keys, NEMOTRON, layer, None, norm=norm, embedding=table, head=head)


def _attention_shape(keys: ConfigKeys) -> AttentionShape:
    """Return the shape of layers that attend; older files call the size of a head differently."""
    size = keys.whole("head_dim", keys.whole("attention_head_dim", 128))
    return replace(attention_shape(keys), head_dim=size, scale=size**-0.5)


FAMILY = Family(
    "nemotron_h",
    ("nemotron_h",),
    "Nemotron-H, Nemotron Nano 2, Nemotron 3 Nano and Super",
    configure,
    own_types_only=True,
)
