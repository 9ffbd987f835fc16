"""Step 3.5 Flash and Step 3.7 Flash: heads with a gate each, more of them under windows, experts.

The gates of the last layers are bounded. Step 3.7 sees by `media/step_vision_encoder`.
Source: StepFun 2026, "Step 3.5 Flash"; names and config keys are those of Hugging Face's
`Step3p7ForConditionalGeneration`. The layers that draft are skipped: the reference builds them with
the heads of layers that see everything, whatever their kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys, kinds_of_layers, sliding_layers
from model_server.models.families.decoder_recipe import BuildFfw, gated_ffw, pre_norm_recipe
from model_server.models.families.experts.mlp_layers import SPARSE
from model_server.models.families.latent_recipe import spare_layers
from model_server.models.families.llama import attention_shape
from model_server.models.families.qwen3 import normed_attention
from model_server.models.families.ropes import FULL, SLIDING, ropes_by_kind
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored, one_of
from model_server.models.layers.activations import Activation, BoundedGate, activation_of
from model_server.models.layers.attention import AttentionShape, OutputGate
from model_server.models.layers.experts import Experts, ExpertSources, RoutedFeedForward
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.rope import Rope
from model_server.models.layers.routing import GroupedSigmoidChoice, Router, checked_count
from model_server.models.media.media_recipe import encoders
from model_server.models.media.step_vision_encoder import OUTER, step_vision
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.source import Tensor
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

# What published files call these keys
_NAMES = {
    "moe_num_experts": "n_routed_experts",
    "moe_top_k": "num_experts_per_tok",
    "num_attention_groups": "num_key_value_heads",
    "num_local_experts": "n_routed_experts",
    "num_mtp_layers": "num_nextn_predict_layers",
    "share_expert_dims": "share_expert_dim",
}
# One of each layer, and of those that draft behind them
_BY_LAYER = (
    "layer_types",
    "mlp_layer_types",
    "partial_rotary_factors",
    "rope_theta",
    "swiglu_limits",
    "swiglu_limits_shared",
)
KEYS = KnownKeys(
    "step3p5",
    (
        *DECODER,
        *OUTER,
        *_BY_LAYER,
        "attention_bias",
        "attention_other_setting",
        "moe_intermediate_size",
        "moe_layers_enum",
        "moe_router_scaling_factor",
        "n_routed_experts",
        "num_experts_per_tok",
        "num_nextn_predict_layers",
        "num_sliding_attention_heads",
        "per_layer_config",
        "query_pre_attn_scalar",
        "share_expert_dim",
        "sliding_window",
    ),
    {
        **DECODER_OFF,
        **ignored("mtp_layer_types", "mtp_mlp_layer_types"),
        # How the published code computes, and what is the outer config's
        **ignored("att_impl_type", "max_seq_len", "need_fp32_gate"),
        **ignored("image_token_len", "patch_token_len", "understand_projector_stride"),
        **ignored("default_theta", "yarn_only_types"),
        "gating": one_of(True),
        "moe_every_n_layer": one_of(1),
        "moe_router_activation": one_of("sigmoid"),
        "norm_expert_weight": one_of(True),
        "sink": one_of(False),
        "use_bidirectional_attention": one_of(False),
        "use_head_wise_attn_gate": one_of(True),
        "use_moe": one_of(True),
        "use_moe_router_bias": one_of(True),
        "use_qk_norm": one_of(True),
        "use_rope_layers": one_of([]),
        "zero_centered": one_of(True),
    },
)
_DEFAULTS = {
    "max_position_embeddings": 128000,
    "moe_intermediate_size": 1280,
    "n_routed_experts": 288,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "share_expert_dim": 1280,
}
_DENSE_FIRST = 3  # layers without experts, if config.json does not say
_BASES, _SHARE = {FULL: 1e4, SLIDING: 1e4}, "partial_rotary_factor"
_GATE = OutputGate(by_heads=True)


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(_of_layers(config or {}), KEYS, _DEFAULTS)
    layers = keys.whole("num_hidden_layers")
    slides, sparse = sliding_layers(keys, lambda index: False), _sparse(keys, layers)
    ropes, (whole, local) = _ropes(keys, slides), _shapes(keys, slides)
    bounds, shared = (_bounds(keys, f"swiglu_limits{of}", layers) for of in ("", "_shared"))
    recipe = pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=[local if slide else whole for slide in slides],
        rope=[ropes[SLIDING if slide else FULL] for slide in slides],
        attention=normed_attention(keys, plus_one=True, gate="g_proj", gate_kind=_GATE),
        ffw=[
            _routed(keys, bounds[at], shared[at]) if sparse[at] else _dense(keys, shared[at])
            for at in range(layers)
        ],
        plus_one=True,
    )
    media = encoders(step_vision(keys, recipe.embed))
    return replace(recipe, unused=spare_layers(keys, layers), media=media)


def _of_layers(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json by the reference's names, its lists without the layers that draft."""
    given = {_NAMES.get(key, key): value for key, value in config.items()}
    layers, drafts = given.get("num_hidden_layers"), given.get("num_nextn_predict_layers")
    if type(layers) is int and type(drafts) is int:
        for key in _BY_LAYER:
            if isinstance(given.get(key), list) and len(given[key]) == layers + drafts:
                given[key] = given[key][:layers]
    return given


def _sparse(keys: ConfigKeys, layers: int) -> list[bool]:
    """One flag per layer: True if it has experts. Raises CheckpointError."""
    listed = kinds_of_layers(keys, SPARSE, "mlp_layer_types")
    if listed is not None:
        return listed
    given = keys.get("moe_layers_enum")
    if given is None:
        return [at >= _DENSE_FIRST for at in range(layers)]
    parts = given.split(",") if isinstance(given, str) else given
    found = {str(part).strip() for part in parts} if isinstance(parts, list) else {"?"}
    if not all(part.isdecimal() for part in found):
        raise CheckpointError(
            f"config.json has moe_layers_enum = {given!r}; the step3p5 family needs the indices of "
            "the layers with experts"
        )
    return [str(at) in found for at in range(layers)]


def _shapes(keys: ConfigKeys, slides: Sequence[bool]) -> tuple[AttentionShape, AttentionShape]:
    """Return the shapes of layers that see everything, and of those with a window.

    Raises CheckpointError.
    """
    plain = attention_shape(keys)
    scale = keys.number("query_pre_attn_scalar", plain.head_dim) ** -0.5
    whole = replace(plain, scale=scale)
    heads = keys.whole_or_none("num_sliding_attention_heads") or _published_heads(keys, whole)
    local = replace(whole, heads=heads, window=keys.whole_or_none("sliding_window"))
    if any(slides) and local.window is None:
        raise CheckpointError("config.json has layers with a window, and no sliding_window")
    wanted = {str(at): {"num_attention_heads": heads} for at, its in enumerate(slides) if its}
    given = keys.get("per_layer_config")
    if given and {str(at): dict(each) for at, each in given.items()} != wanted:
        raise CheckpointError(
            f"config.json has per_layer_config = {given!r}; the step3p5 family has {heads} query "
            "heads in each layer with a window, and else no differences"
        )
    return whole, local


def _published_heads(keys: ConfigKeys, shape: AttentionShape) -> int:
    """Return the query heads of layers with a window, as published files have them.

    Raises CheckpointError.
    """
    given = keys.get("attention_other_setting") or {}
    same = {"num_attention_groups": shape.kv_heads, "head_dim": shape.head_dim}
    same |= {"true_head_dim": shape.head_dim, "attention_type": SLIDING}
    heads = given.get("num_attention_heads", shape.heads)
    odd = [key for key, value in given.items() if same.get(key, value) != value]
    unknown = given.keys() - {*same, "num_attention_heads"}
    if odd or unknown or type(heads) is not int or heads % shape.kv_heads:
        raise CheckpointError(
            f"config.json has attention_other_setting = {given!r}; layers of the step3p5 family "
            "that have a window have another number of query heads, and else the same sizes"
        )
    return heads


def _ropes(keys: ConfigKeys, slides: Sequence[bool]) -> dict[str, Rope]:
    """Raises CheckpointError."""
    given = keys.get("rope_parameters") or {}
    if not all(isinstance(given.get(kind), Mapping) for kind in _kinds(slides)):
        given = _published_ropes(keys, slides)
    return ropes_by_kind(keys, keys.whole("head_dim"), given, _BASES, share=1.0)


def _published_ropes(keys: ConfigKeys, slides: Sequence[bool]) -> dict[str, Any]:
    """Return rope settings by kind of layer, of files that list them by layer."""
    bases, shares = keys.get("rope_theta", _BASES[FULL]), keys.get("partial_rotary_factors")
    made: dict[str, Any] = {}
    for kind in _kinds(slides):
        of_kind = [at for at, slide in enumerate(slides) if slide == (kind == SLIDING)]
        base, share = (_same(keys, value, of_kind, kind) for value in (bases, shares))
        made[kind] = {"rope_theta": base} | ({} if share is None else {_SHARE: share})
    if FULL in made:
        made[FULL] |= keys.get("rope_scaling") or {}
    return made


def _same(keys: ConfigKeys, given: Any, layers: Sequence[int], kind: str) -> Any:
    """Return what a list has for these layers, or the one value. Raises CheckpointError."""
    if not isinstance(given, list):
        return given
    found = {given[at] if at < len(given) else None for at in layers}
    if len(found) != 1 or None in found:
        raise CheckpointError(
            f"config.json has {given!r} among its rope settings; the {keys.family} family needs "
            f"one number for all layers of kind {kind}"
        )
    return found.pop()


def _kinds(slides: Sequence[bool]) -> list[str]:
    return [kind for kind, its in ((FULL, False), (SLIDING, True)) if its in slides]


def _bounds(keys: ConfigKeys, key: str, layers: int) -> list[float | None]:
    """The bound of each layer's gates; None: it has none. Raises CheckpointError."""
    given = keys.get(key) or [None] * layers
    if len(given) != layers or any(type(n) not in (int, float, type(None)) for n in given):
        raise CheckpointError(
            f"config.json has {key} = {given!r}; the step3p5 family needs a number or null for "
            f"each of its {layers} layers"
        )
    return [float(bound) if bound else None for bound in given]


def _gate(keys: ConfigKeys, bound: float | None) -> Activation:
    usual = activation_of(keys.get("hidden_act", "silu"))
    return usual if bound is None else BoundedGate(bound, after=True)


def _dense(keys: ConfigKeys, bound: float | None) -> BuildFfw:
    return gated_ffw(keys, gate=_gate(keys, bound))


def _routed(keys: ConfigKeys, bound: float | None, shared: float | None) -> BuildFfw:
    """Builder of experts whose gates are bounded, beside a feed-forward with a bound of its own."""
    embed, ffw = keys.whole("hidden_size"), keys.whole("moe_intermediate_size")
    experts, width = keys.whole("n_routed_experts"), keys.whole("share_expert_dim")
    scale = keys.number("moe_router_scaling_factor", 1.0)
    choice = GroupedSigmoidChoice(checked_count(keys, experts), 1, 1, True, scale)

    def build(prefix: str, form: WeightForm) -> RoutedFeedForward:
        name = f"{prefix}.moe"
        gate, up, down = (Tensor(f"{name}.{part}_proj.weight") for part in ("gate", "up", "down"))
        sources = ExpertSources(count=experts, gate=gate, up=up, down=down)
        return RoutedFeedForward(
            Router(embed, experts, choice, (f"{name}.gate.weight",), bias=(f"{name}.router_bias",)),
            Experts(embed, ffw, sources, activation=_gate(keys, bound), form=form),
            GatedFeedForward.hugging_face(
                embed, width, f"{prefix}.share_expert", activation=_gate(keys, shared), form=form
            ),
        )

    return build


FAMILY = Family(
    "step3p5",
    ("step3p5", "step3p7"),
    "Step 3.5 Flash, Step 3.7 Flash",
    configure,
    own_types_only=True,
)
