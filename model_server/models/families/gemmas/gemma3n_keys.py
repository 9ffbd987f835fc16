"""Keys of a Gemma 3n's config.json."""

from __future__ import annotations

from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored
from sax.errors import CheckpointError

# Limits of training, and tokens and sizes of the encoders of images and audio.
_UNUSED = ignored(
    "altup_coef_clip",
    "altup_lr_multiplier",
    "audio_soft_tokens_per_image",
    "audio_token_id",
    "boa_token_id",
    "boi_token_id",
    "eoa_token_id",
    "eoi_token_id",
    "image_token_id",
    "query_pre_attn_scalar",
    "vision_soft_tokens_per_image",
)
KEYS = KnownKeys(
    "gemma3n",
    (
        *DECODER,
        "activation_sparsity_pattern",
        "altup_active_idx",
        "altup_correct_scale",
        "altup_num_inputs",
        "attention_bias",
        "final_logit_softcapping",
        "hidden_activation",
        "hidden_size_per_layer_input",
        "laurel_rank",
        "layer_types",
        "num_kv_shared_layers",
        "rope_local_base_freq",
        "sliding_window",
        "vocab_size_per_layer_input",
    ),
    {**DECODER_OFF, **_UNUSED},
)
DEFAULTS = {
    "altup_active_idx": 0,
    "altup_correct_scale": True,
    "altup_num_inputs": 4,
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2048,
    "hidden_size_per_layer_input": 256,
    "intermediate_size": 16384,
    "laurel_rank": 64,
    "max_position_embeddings": 32768,
    "num_attention_heads": 8,
    "num_hidden_layers": 35,
    "num_key_value_heads": 2,
    "num_kv_shared_layers": 15,
    "sliding_window": 512,
    "vocab_size": 262400,
    "vocab_size_per_layer_input": 262144,
}
_SPARSE, _SHARE = 10, 0.95  # layers at the front of a model with more, and of their gates


def widths_of(keys: ConfigKeys) -> list[int]:
    """Return the feed-forward's width in each layer. Raises CheckpointError."""
    layers, given = keys.whole("num_hidden_layers"), keys.get("intermediate_size")
    if not isinstance(given, list):
        return [keys.whole("intermediate_size")] * layers
    return _checked("intermediate_size", given, layers, lambda x: type(x) is int and x > 0)


def sparsities_of(keys: ConfigKeys) -> list[float]:
    """Return the share of gates that each layer closes. Raises CheckpointError."""
    layers, given = keys.whole("num_hidden_layers"), keys.get("activation_sparsity_pattern")
    if given is None:
        sparse = _SPARSE if layers > _SPARSE else 0
        return [_SHARE] * sparse + [0.0] * (layers - sparse)
    return _checked("activation_sparsity_pattern", given, layers, _is_share)


def _is_share(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 1


def _checked(key: str, given: Any, layers: int, fits: Any) -> list[Any]:
    if not isinstance(given, list) or len(given) != layers or not all(map(fits, given)):
        raise CheckpointError(
            f"config.json has {key} = {given!r}; the gemma3n family needs a fitting number for "
            f"each of its {layers} layers"
        )
    return given
