"""Keys of a Falcon-H1's config.json."""

from __future__ import annotations

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.recurrent.mixers import MAMBA, MAMBA_DEFAULTS, MAMBA_OFF
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, all_in, ignored
from sax.errors import CheckpointError

_FACTORS = (
    "attention_in_multiplier",
    "attention_out_multiplier",
    "embedding_multiplier",
    "key_multiplier",
    "lm_head_multiplier",
    "ssm_in_multiplier",
    "ssm_out_multiplier",
)
KEYS = KnownKeys(
    "falcon_h1",
    (
        *DECODER,
        *MAMBA,
        *_FACTORS,
        "attention_bias",
        "mamba_d_ssm",
        "mamba_norm_before_gate",
        "mamba_rms_norm",
        "mlp_bias",
        "mlp_multipliers",
        "projectors_bias",
        "ssm_multipliers",
    ),
    # Notes of the training; the kinds of layers are all the same.
    {
        **DECODER_OFF,
        **MAMBA_OFF,
        **ignored("attn_layer_indices", "mamba_use_mlp", "mlp_expansion_factor"),
        "layer_types": all_in("hybrid"),
        "layers_block_type": all_in("hybrid"),
    },
)
DEFAULTS = {
    **MAMBA_DEFAULTS,
    **dict.fromkeys(_FACTORS, 1.0),
    "mamba_d_ssm": 1024,
    "mamba_norm_before_gate": True,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
}


def numbers_of(keys: ConfigKeys, key: str, count: int) -> tuple[float, ...]:
    """Return the factors under a key, 1 if it is not there. Raises CheckpointError."""
    given = keys.get(key, [1.0] * count)
    if not isinstance(given, list) or [type(x) in (int, float) for x in given] != [True] * count:
        raise CheckpointError(f"config.json has {key} = {given!r}; give {count} numbers")
    return tuple(map(float, given))
