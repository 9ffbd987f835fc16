"""Keys of a Gemma 4's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from model_server.models.config_keys import ConfigKeys, sliding_layers
from model_server.models.families.llama import attention_shape
from model_server.models.families.ropes import FULL, SLIDING, settings_of
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored
from model_server.models.layers.attention import AttentionShape
from model_server.models.layers.rope import Rope, rope_of
from sax.errors import CheckpointError

# Tokens and sizes of the encoders of images and audio.
_UNUSED = ignored(
    "audio_token_id",
    "boa_token_id",
    "boi_token_id",
    "eoa_token_id",
    "eoa_token_index",
    "eoi_token_id",
    "image_token_id",
    "video_token_id",
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
