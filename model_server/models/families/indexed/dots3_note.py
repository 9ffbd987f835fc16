"""Dots 3: latent attention to chosen tokens and, of other sizes, in windows; gated heads, experts.

It sees by `media/dots_vision_encoder` and hears by `media/dots_sounds`. The layers that draft are
skipped: the reference defines none.
Source: Dots Studio 2026, "Dots 3 Note"; names and config keys are those of Hugging Face's
`Dots3NoteForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from model_server.checkpoints.media_part import AUDIO, FEATURES
from model_server.kernels.pages import CacheShape, HeadShape
from model_server.models.config_keys import ConfigKeys, kinds_of_layers
from model_server.models.families.experts.mlp_layers import listed_sparse
from model_server.models.families.indexed.deepseek_v32 import choosing_cache, indexer_of
from model_server.models.families.indexed.indexed_attention import IndexedLatentAttention
from model_server.models.families.latent_recipe import (
    LATENT,
    LATENT_OFF,
    BuildLatent,
    latent_recipe,
)
from model_server.models.families.ropes import FULL, SLIDING
from model_server.models.families.sigmoid_experts import ROUTED, routed_ffw
from model_server.models.known_keys import KnownKeys, ignored, one_of
from model_server.models.layers.attention import OutputGate
from model_server.models.layers.latent_attention import LatentAttention, LatentShape
from model_server.models.layers.rope import Rope, rope_of
from model_server.models.media.dots_sounds import dots_sounds
from model_server.models.media.dots_vision_encoder import dots_vision
from model_server.models.media.media_recipe import encoders
from model_server.models.media.qwen.sounds import with_files_apart
from model_server.models.media.qwen.vision_encoder import OUTER
from model_server.models.recipe import Family, Recipe
from model_server.models.weights.sharding import split_heads
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError, InvalidRequest

CHOSEN = "indexed_attention"
# Sizes of layers with a window, as published files have them, with `swa_` in front.
_LOCAL = {
    "head_dim": 256,
    "kv_lora_rank": 1024,
    "num_attention_heads": 64,
    "q_lora_rank": 1024,
    "qk_nope_head_dim": 192,
    "v_head_dim": 128,
}
_ROTATED = "qk_rope_head_dim"  # of them; None: what is left of a head
_EACH = "per_layer_config"  # where transformers writes them
KEYS = KnownKeys(
    "dots3_note",
    (
        *(key for key in LATENT if key != "rope_scaling"),
        *ROUTED,
        *OUTER,
        *(AUDIO, FEATURES, "audio_token_id"),
        *(f"swa_{key}" for key in (*_LOCAL, _ROTATED, "rope_theta")),
        _EACH,
        "head_dim",
        "index_head_dim",
        "index_n_heads",
        "index_topk",
        "layer_types",
        "mlp_layer_types",
        "shared_experts_intermediate_size",
        "sliding_window",
        "use_dsa",
        "use_sliding_window",
    ),
    {
        **LATENT_OFF,
        **ignored("swa_num_key_value_heads"),  # as many as heads: they share one latent
        "apply_mla_qkv_lora_rescale": one_of(True),
        "attention_gate_type": one_of("headwise"),
        "final_norm": one_of("RMSNorm"),
        "k_rope_only_layernorm": one_of(True),
        "mlp_bias": one_of(False),
        "moe_gating_fp32": one_of(False),
        "normalization": one_of("RMSNorm"),
        "swa_attention_gate_type": one_of("headwise"),
        "use_dynamic_rsf": one_of(False),
    },
)
_DEFAULTS = {
    "first_k_dense_replace": 1,
    "head_dim": 256,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 2048,
    "kv_lora_rank": 512,
    "max_position_embeddings": 524288,
    "moe_intermediate_size": 1536,
    "n_group": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "q_lora_rank": 1024,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-5,
    "routed_scaling_factor": 1.0,
    "shared_experts_intermediate_size": 1536,
    "sliding_window": 512,
    "topk_group": 1,
    "v_head_dim": 128,
}
# What published files call these keys
_NAMES = {
    "moe_shared_expert_intermediate_size": "shared_experts_intermediate_size",
    "num_local_experts": "n_routed_experts",
    "sliding_window_size": "sliding_window",
}
_PARTS: Mapping[str, Any] = {
    "gate": "g_proj",
    "gate_kind": OutputGate(by_heads=True),
    "rotated_norm": "k_rope_only_layernorm",
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(with_files_apart(_renamed(config or {})), KEYS, _DEFAULTS)
    kinds, indexer = _kinds(keys), indexer_of(keys)
    whole, local = _whole(keys), _local(keys, kinds)
    shared = keys.whole("shared_experts_intermediate_size") * keys.whole("n_shared_experts")
    builders: dict[str, BuildLatent] = {
        CHOSEN: partial(IndexedLatentAttention, indexer, interleaved=True, **_PARTS),
        FULL: partial(LatentAttention, **_PARTS),
        SLIDING: partial(_of_shape, local),
    }
    rotated = {CHOSEN: whole.rotated_dim, FULL: whole.rotated_dim, SLIDING: local.rotated_dim}
    ropes = {kind: _rope(keys, kind, rotated[kind]) for kind in set(kinds)}
    recipe = latent_recipe(
        keys,
        values,
        listed_sparse(keys),
        routed_ffw(keys, shared=shared),
        shape=whole,
        attentions=[builders[kind] for kind in kinds],
        rope=[ropes[kind] for kind in kinds],
        unused=(f"model.layers.{len(kinds)}.", "model.mtp."),
    )
    narrow = {kind: _cached(local if kind == SLIDING else whole) for kind in (FULL, SLIDING)}
    cached = choosing_cache(keys, indexer, tuple(narrow.get(kind) for kind in kinds), whole)

    def cache(shards: int) -> CacheShape:
        _check_alike(whole, local, shards)
        return replace(cached(shards), chosen=CHOSEN in kinds, plain=CHOSEN in kinds)

    windows = tuple(local.window if kind == SLIDING else None for kind in kinds)
    media = encoders(dots_vision(keys, values, whole.embed), dots_sounds(keys, whole.embed))
    return replace(recipe, cache=cache, windows=windows, own_head=None, media=media)


def _renamed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json by the names that transformers writes, which come first."""
    given = {key: value for key, value in config.items() if key not in _NAMES}
    for older, key in _NAMES.items():
        if older in config and given.get(key) is None:
            given[key] = config[older]
    flags, usual = given.get("moe_layer_freq"), _DEFAULTS["first_k_dense_replace"]
    dense = given.get("first_k_dense_replace", usual)
    if isinstance(flags, list) and type(dense) is int:  # of each layer
        kinds = ["sparse" if its and at >= dense else "dense" for at, its in enumerate(flags)]
        given["mlp_layer_types"] = given.get("mlp_layer_types") or kinds
        del given["moe_layer_freq"]
    return given


def _kinds(keys: ConfigKeys) -> list[str]:
    """Each layer's kind. Raises CheckpointError.

    In published files layers that choose are called `full_attention`.
    """
    found = kinds_of_layers(keys, {kind: kind for kind in (CHOSEN, FULL, SLIDING)})
    chooses = keys.flag("use_dsa", True)
    if found is None:
        slides, other = keys.flag("use_sliding_window", True), CHOSEN if chooses else FULL
        return [
            SLIDING if slides and index > 1 and index % 4 != 1 else other
            for index in range(keys.whole("num_hidden_layers"))
        ]
    if keys.get("use_dsa") is None and keys.get(_EACH) is not None:
        return found
    before, after = (FULL, CHOSEN) if chooses else (CHOSEN, FULL)
    return [after if kind == before else kind for kind in found]


def _whole(keys: ConfigKeys) -> LatentShape:
    """Shape of layers that see everything, or choose among it. Raises CheckpointError."""
    return _shape(keys, {key: keys.whole(key) for key in (*_LOCAL, _ROTATED)}, None)


def _local(keys: ConfigKeys, kinds: Sequence[str]) -> LatentShape:
    """Shape of layers with a window. Raises CheckpointError."""
    given = keys.get(_EACH)
    if given is None:
        sizes = {key: keys.whole(f"swa_{key}", size) for key, size in _LOCAL.items()}
        rest = sizes["head_dim"] - sizes["qk_nope_head_dim"]
        sizes[_ROTATED] = keys.whole(f"swa_{_ROTATED}", rest)
    else:
        known = {key: keys.whole(key) for key in (*_LOCAL, _ROTATED)}
        sizes = known | _of_each(keys, given, [kind == SLIDING for kind in kinds])
    if SLIDING in kinds and sizes["head_dim"] != sizes["qk_nope_head_dim"] + sizes[_ROTATED]:
        raise CheckpointError(
            f"config.json gives layers with a window heads of {sizes['head_dim']} numbers, of "
            f"which {sizes['qk_nope_head_dim']} do not rotate and {sizes[_ROTATED]} do"
        )
    return _shape(keys, sizes, keys.whole("sliding_window"))


def _of_each(keys: ConfigKeys, given: Any, slides: Sequence[bool]) -> dict[str, int]:
    """Return the sizes that all layers with a window have apart. Raises CheckpointError."""
    each = given if isinstance(given, Mapping) else {"0": given}
    known = {"num_key_value_heads", *_LOCAL, _ROTATED}
    of = [each.get(str(index)) or {} for index in range(len(slides))]
    local = [sizes for sizes, its in zip(of, slides, strict=True) if its]
    sizes = local[0] if local else {}
    alike = all(other == (sizes if its else {}) for other, its in zip(of, slides, strict=True))
    fits = isinstance(sizes, Mapping) and sizes.keys() <= known and alike
    if not fits or any(type(size) is not int or size < 1 for size in sizes.values()):
        raise CheckpointError(
            f"config.json has {_EACH} = {given!r}; the {keys.family} family supports sizes of the "
            f"layers with a window, the same for all of them: {', '.join(sorted(known))}"
        )
    return dict(sizes)


def _shape(keys: ConfigKeys, sizes: Mapping[str, int], window: int | None) -> LatentShape:
    embed, plain, rotated = keys.whole("hidden_size"), sizes["qk_nope_head_dim"], sizes[_ROTATED]
    return LatentShape(
        embed=embed,
        heads=sizes["num_attention_heads"],
        plain_dim=plain,
        rotated_dim=rotated,
        value_dim=sizes["v_head_dim"],
        latent=sizes["kv_lora_rank"],
        query_latent=sizes["q_lora_rank"],
        scale=(plain + rotated) ** -0.5,
        biased=keys.flag("attention_bias"),
        epsilon=keys.number("rms_norm_eps"),
        query_gain=(embed / sizes["q_lora_rank"]) ** 0.5,
        gain=(embed / sizes["kv_lora_rank"]) ** 0.5,
        window=window,
    )


def _of_shape(own: LatentShape, _: LatentShape, prefix: str, form: WeightForm) -> LatentAttention:
    return LatentAttention(own, prefix, form, **_PARTS)


def _cached(shape: LatentShape) -> HeadShape:
    return HeadShape(1, shape.latent + shape.rotated_dim, 0)


def _rope(keys: ConfigKeys, kind: str, rotated: int) -> Rope:
    """Build the rope of layers of a kind. Raises CheckpointError."""
    given = keys.get("rope_parameters") or {}
    if not isinstance(given, Mapping) or given.keys() - {CHOSEN, FULL, SLIDING}:
        raise CheckpointError(
            f"config.json has rope_parameters = {given!r}; the {keys.family} family has them by "
            f"kind of layer: write them below {CHOSEN}, {FULL} or {SLIDING}"
        )
    key, usual = ("swa_rope_theta", 5e4) if kind == SLIDING else ("rope_theta", 8e7)
    settings = {"rope_theta": keys.number(key, usual)} | dict(given.get(kind) or {})
    settings.pop("partial_rotary_factor", None)  # the sizes say it
    context = {"max_position_embeddings": keys.whole("max_position_embeddings")}
    return rope_of(context | {"rope_parameters": settings}, rotated, interleaved=True)


def _check_alike(whole: LatentShape, local: LatentShape, shards: int) -> None:
    axes = {split_heads(each.heads, each.heads, shards).axis for each in (whole, local)}
    if len(axes) > 1:
        raise InvalidRequest(
            f"{whole.heads} and {local.heads} heads, in different layers, do not both divide over "
            f"{shards} devices: give ICI_MESH_SHAPE another last number",
            param="overrides.ICI_MESH_SHAPE",
        )


FAMILY = Family(
    "dots3_note",
    ("dots3_note_text", "dots3_note"),
    "Dots 3",
    configure,
    own_types_only=True,
)
