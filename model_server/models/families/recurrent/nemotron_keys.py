"""Keys of Nemotron-H's config.json: what each layer is, and the sizes of its Mamba layers."""

from __future__ import annotations

from model_server.models.config_keys import ConfigKeys, kinds_of_layers
from model_server.models.families.recurrent.mixers import step_limits
from model_server.models.families.sigmoid_experts import ROUTED
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored, one_of
from model_server.models.layers.state_space import StateSpaceShape
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
        # Layers that guess further tokens; the rope and norm of other decoders; the head is its own
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
