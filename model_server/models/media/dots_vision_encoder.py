"""Dots 3's image and video input: a tower whose later layers have experts, more in each.

Names and config keys are those of Hugging Face's `Dots3NoteForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from flax import nnx

from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys, ignored, one_of
from model_server.models.layers.activations import activation_of
from model_server.models.layers.attention import AttentionSources
from model_server.models.layers.experts import Experts, ExpertSources, RoutedFeedForward
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.routing import GroupedSigmoidChoice, Router
from model_server.models.media.media_recipe import MediaRecipe
from model_server.models.media.qwen.tower import PartNames, TowerShape, joined
from model_server.models.media.qwen.tower_keys import MergerNames, layer_norm, merging, rms_norms
from model_server.models.media.qwen.vision_encoder import CLIP, HALVES, QwenKind, apart, qwen_vision
from model_server.models.media.tower_layer import axial_theta
from model_server.models.media.vision_keys import vision_config_of
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

# What published files call the keys of vision_config
_NAMES = {
    "capacity_factor": "num_experts_per_tok",
    "embed_dim": "hidden_size",
    "num_heads": "num_attention_heads",
    "router_scale": "router_scaling_factor",
    "use_bias": "attention_bias",
}
_PYRAMID, _EACH, _KINDS = "pyramid_num_routed", "per_layer_config", "mlp_layer_types"
_KEYS = KnownKeys(
    "dots3_note",
    (
        *_NAMES.values(),
        _PYRAMID,
        _EACH,
        _KINDS,
        "adapter_in_dim",
        "adapter_merge_size",
        "adapter_out_dim",
        "hidden_act",
        "intermediate_size",
        "moe_intermediate_size",
        "num_channels",
        "num_hidden_layers",
        "num_local_experts",
        "patch_size",
        "rms_norm_eps",
        "rope_parameters",
        "rope_theta",
        "spatial_merge_size",
    ),
    {
        **ignored("attention_dropout", "image_size", "initializer_range"),
        "is_causal": one_of(False),
        "mlp_bias": one_of(False),
        "temporal_patch_size": one_of(1),
    },
)
_DEFAULTS = {
    "adapter_out_dim": 5120,
    "hidden_act": "silu",
    "hidden_size": 1536,
    "intermediate_size": 4224,
    "moe_intermediate_size": 2112,
    "num_attention_heads": 24,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 42,
    "num_local_experts": 64,
    "patch_size": 14,
    "rms_norm_eps": 1e-5,
    "router_scaling_factor": 1.0,
    "spatial_merge_size": 2,
}
_USUAL_PYRAMID = [-1] * 25 + [*range(4, 65, 4)] + [64]
_TOWER_NAMES = PartNames(
    norms=("norm_1", "norm_2"), first="patch_embed.norm", last="post_trunk_norm"
)
_MERGER = MergerNames(norm="ln_q", up="mlp.0", down="mlp.2")
_PARTS = ("fc1", "fc3", "fc2")  # of a feed-forward: what opens, what passes, and what is behind
# Frames are images, one after the other, and tokens are counted like those of a text.
_KIND = QwenKind(
    image={**CLIP, "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}},
    video={
        **HALVES,
        "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768},
    },
    processor="Qwen3VL",
    timing=lambda _: apart(None),
    triples=False,
    together=True,
    share=768,
    tokens=(151660, 151680),
    texts=("<|imgpad|>", "<|video_pad|>"),
)


def dots_vision(keys: ConfigKeys, values: Mapping[str, Any], embed: int) -> MediaRecipe | None:
    """Return the recipe of the vision encoder; None: the checkpoint has none.

    embed: of the language model. Raises CheckpointError, InvalidRequest.
    """
    return qwen_vision(keys, values, _tower, _KIND, embed)


def _tower(outer: ConfigKeys) -> TowerShape:
    """Raises CheckpointError."""
    given = vision_config_of(outer) or {}
    own = {_NAMES[key]: value for key, value in given.items() if key in _NAMES}
    own = {**{key: value for key, value in given.items() if key not in _NAMES}, **own}
    keys = ConfigKeys(own, _KEYS, _DEFAULTS)
    keys.only("num_channels", 3)
    size, heads, patch = (
        keys.whole(key) for key in ("hidden_size", "num_attention_heads", "patch_size")
    )
    if size % (4 * heads):
        raise CheckpointError(
            f"vision_config has hidden_size = {size} in {heads} heads; each head must have a "
            "multiple of 4 numbers, half of which are rotated by rows"
        )
    merge = keys.whole("spatial_merge_size")
    keys.only("adapter_merge_size", merge)
    keys.only("adapter_in_dim", size)
    return TowerShape(
        layers=keys.whole("num_hidden_layers"),
        embed=size,
        heads=heads,
        out=keys.whole("adapter_out_dim"),
        patch=(3, patch, patch),
        merge=merge,
        theta=axial_theta(keys, "dots3_note"),
        normed_heads=True,
        patch_bias=True,
        sources=partial(_sources, keys.flag("attention_bias")),
        name="vision_tower",
        names=_TOWER_NAMES,
        norm=rms_norms(keys.number("rms_norm_eps")),
        ffw=_Ffws(keys),
        merger=merging(_MERGER, "vision_tower.adapter", layer_norm),
    )


def _sources(biased: bool, size: int, narrow: int, name: str) -> AttentionSources:
    made = joined(size, narrow, name)
    return made if biased else replace(made, biases=None, out_bias=None)


class _Ffws:
    """Builds the feed-forwards of layers, with experts or without."""

    def __init__(self, keys: ConfigKeys) -> None:
        """Raises CheckpointError."""
        self.embed, self.scale = keys.whole("hidden_size"), keys.number("router_scaling_factor")
        self.dense = keys.whole("intermediate_size")
        self.ffw = keys.whole("moe_intermediate_size")
        self.activation = activation_of(keys.get("hidden_act"))
        self.experts = _experts(keys)

    def __call__(self, index: int, name: str, form: WeightForm) -> nnx.Module:
        experts, taken = self.experts[index]
        gate, up, down = _PARTS
        if not experts:
            parts = ((f"{name}.{part}.weight",) for part in _PARTS)
            kernels = dict(zip(("gate", "up", "down"), parts, strict=True))
            return GatedFeedForward(
                self.embed, self.dense, **kernels, activation=self.activation, form=form
            )
        choice = GroupedSigmoidChoice(taken, 1, 1, True, self.scale)
        below = f"{name}.experts"
        sources = ExpertSources.hugging_face(below, experts, gate=gate, up=up, down=down)
        bias = (f"{name}.router_bias",)
        return RoutedFeedForward(
            Router(self.embed, experts, choice, (f"{name}.gate_weight",), bias=bias),
            Experts(self.embed, self.ffw, sources, activation=self.activation, form=form),
            None,
        )


def _experts(keys: ConfigKeys) -> list[tuple[int, int]]:
    """Return the experts of each layer, and how many of them a patch takes; 0: it has none.

    Raises CheckpointError.
    """
    layers, most = keys.whole("num_hidden_layers"), keys.whole("num_experts_per_tok")
    kinds, pyramid = keys.get(_KINDS), keys.get(_PYRAMID)
    if pyramid is None and kinds is None:
        pyramid = _USUAL_PYRAMID
    if pyramid is not None:
        counts = _listed(pyramid, layers, _PYRAMID, lambda each: type(each) is int)
        found = [(max(count, 0), min(most, count)) for count in counts]
        return [(count, taken if count else 0) for count, taken in found]
    each = keys.get(_EACH) or {}
    usual = {"num_local_experts": keys.whole("num_local_experts"), "num_experts_per_tok": most}
    made = list[tuple[int, int]]()
    for at, kind in enumerate(_listed(kinds, layers, _KINDS, ("dense", "sparse").__contains__)):
        own = usual | dict(each.get(str(at), each.get(at, {})) if isinstance(each, Mapping) else {})
        sizes = tuple(own[key] for key in usual)
        if own.keys() - usual or not all(type(n) is int and n > 0 for n in sizes):
            raise CheckpointError(
                f"vision_config has {_EACH} = {each!r}; supported: {', '.join(usual)}"
            )
        made.append((sizes[0], min(sizes)) if kind == "sparse" else (0, 0))
    return made


def _listed(given: Any, layers: int, key: str, fits: Any) -> Sequence[Any]:
    """Return a list with a value for each layer. Raises CheckpointError."""
    if not isinstance(given, list) or len(given) != layers or not all(map(fits, given)):
        raise CheckpointError(
            f"vision_config has {key} = {given!r}; give a value for each of its {layers} layers"
        )
    return given
