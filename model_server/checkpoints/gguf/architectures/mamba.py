"""Mamba-2, Granite 4.0 (and 3 with experts), Bamba, Falcon-H1, Nemotron-H and 3: only read.

Files hold -exp(A_log), and a layer's kind as its number of key heads. Those of Bamba bear Granite's
name, and none of Granite's multipliers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.checkpoints.gguf.architecture import (
    Config,
    GgufArchitecture,
    JoinedPlace,
    TensorPlace,
    optional,
    place,
    rotated,
)
from model_server.checkpoints.gguf.architectures.experts import read_decoder
from model_server.checkpoints.gguf.architectures.lfm2 import key_heads
from model_server.checkpoints.gguf.architectures.llama import PROJECTIONS, TENSORS, feed_forward
from model_server.checkpoints.gguf.facts import Facts, Key
from model_server.checkpoints.gguf.heads import (
    DECODER,
    LAYERS,
    SIZES,
    read_heads,
    read_partly_rotated_heads,
)
from model_server.checkpoints.gguf.rope import read_rope
from sax.errors import CheckpointError

_ROTATED = {
    "attn_q": place("self_attn.q_proj", order=rotated("num_attention_heads")),
    "attn_k": place("self_attn.k_proj", order=rotated("num_key_value_heads")),
}


def _any(facts: Facts, stem: str) -> bool:
    """Return whether any layer has the tensor."""
    return any(name.endswith(f".{stem}") for name in facts.tensors)


def _mamba(name: str, needed: Any, normed: str = "norm") -> dict[str, TensorPlace]:
    """Return the tensors of a Mamba-2 layer below `name`."""
    return {
        "ssm_in": place(f"{name}.in_proj", needed=needed),
        "ssm_conv1d": place(f"{name}.conv1d", filters=True, needed=needed),
        "ssm_dt.bias": place(f"{name}.dt_bias", needed=needed),
        "ssm_a": place(f"{name}.A_log", flat=True, decay=True, bare=True, needed=needed),
        "ssm_d": place(f"{name}.D", flat=True, bare=True, needed=needed),
        "ssm_norm": place(f"{name}.{normed}", flat=True, needed=needed),
        "ssm_out": place(f"{name}.out_proj", needed=needed),
    }


def _mamba_sizes(facts: Facts, names: Mapping[str, str]) -> dict[str, Any]:
    """Return config.json's sizes of Mamba-2 layers; `names`: its keys by what they say."""
    heads, inner = facts.whole("ssm.time_step_rank"), facts.whole("ssm.inner_size")
    if inner % heads:
        raise CheckpointError(f"its ssm.inner_size {inner} is not a multiple of {heads} heads")
    found = {
        "heads": heads,
        "size": inner // heads,
        "groups": facts.whole("ssm.group_count"),
        "state": facts.whole("ssm.state_size"),
        "width": facts.whole("ssm.conv_kernel"),
    }
    return {names[each]: value for each, value in found.items()}


_MAMBA_NAMES = {
    "heads": "mamba_n_heads",
    "size": "mamba_d_head",
    "groups": "mamba_n_groups",
    "state": "mamba_d_state",
    "width": "mamba_d_conv",
}


def _mamba_config(facts: Facts, config: Mapping[str, Any]) -> dict[str, Any]:
    inner = facts.whole("ssm.inner_size")
    return {
        **_mamba_sizes(facts, _MAMBA_NAMES),
        "mamba_expand": inner / config["hidden_size"],
        "mamba_conv_bias": _any(facts, "ssm_conv1d.bias"),
        "mamba_proj_bias": _any(facts, "ssm_in.bias"),
    }


def _always(config: Config, layer: int) -> bool:
    return True


def _attends(config: Config, layer: int) -> bool:
    if "attn_layer_indices" in config:
        return layer in config["attn_layer_indices"]
    return config["layer_types"][layer] in ("attention", "full_attention")


def _recurs(config: Config, layer: int) -> bool:
    return not _attends(config, layer)


_ATTENTION = {stem: place(at.name, needed=_attends) for stem, at in PROJECTIONS.items()}
_PAIRS = {stem: replace(at, needed=_attends) for stem, at in _ROTATED.items()}

# --- Granite

_MULTIPLIERS = (
    Key("attention_multiplier", "attention.scale", float, 1.0),
    Key("embedding_multiplier", "embedding_scale", float, 1.0),
    Key("logits_scaling", "logit_scale", float, 1.0),
    Key("residual_multiplier", "residual_scale", float, 1.0),
)


def _granite_sparse(config: Config, layer: int) -> bool:
    return config["num_local_experts"] > 0


def _granite_dense(config: Config, layer: int) -> bool:
    return not _granite_sparse(config, layer)


def _granite_experts(needed: Any) -> tuple[JoinedPlace, ...]:
    name = "block_sparse_moe"
    both, down = ("ffn_gate_exps.weight", "ffn_up_exps.weight"), ("ffn_down_exps.weight",)
    return (
        JoinedPlace(name=f"{name}.input_linear.weight", parts=both, needed=needed),
        JoinedPlace(name=f"{name}.output_linear.weight", parts=down, needed=needed),
    )


GRANITEMOE = GgufArchitecture(
    name="granitemoe",
    model_types={"granitemoe": "GraniteMoeForCausalLM"},
    tensors=TENSORS,
    layer_tensors={
        **PROJECTIONS,
        **_ROTATED,
        "attn_norm": place("input_layernorm"),
        "ffn_norm": place("post_attention_layernorm"),
        "ffn_gate_inp": place("block_sparse_moe.router.layer"),
    },
    joined=_granite_experts(_always),
    keys=(
        *DECODER,
        *_MULTIPLIERS,
        Key("num_local_experts", "expert_count"),
        Key("num_experts_per_tok", "expert_used_count"),
    ),
    fixed={"hidden_act": "silu"},
    more_config=read_decoder,
)


def _read_hybrid(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    if facts.get("attention.scale") is None:
        raise CheckpointError("it has multipliers of a Granite, but no attention.scale")
    counts = key_heads(facts, config["num_hidden_layers"])
    heads = read_heads(facts, config, max(counts))
    rotates = facts.flag("rope.scaling.finetuned", False)
    shared = facts.get("expert_shared_feed_forward_length")
    found = {
        **heads,
        **read_rope(facts, heads["head_dim"]),
        **_mamba_config(facts, config),
        "layer_types": ["attention" if count else "mamba" for count in counts],
    }
    return found | {
        "num_local_experts": facts.get("expert_count", 0),
        "num_experts_per_tok": facts.get("expert_used_count", 0) or 1,
        "shared_intermediate_size": shared or config["intermediate_size"],
        "position_embedding_type": "rope" if rotates else "nope",
        "attention_bias": _any(facts, "attn_q.bias"),
    }


def _read_bamba(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    counts = key_heads(facts, config["num_hidden_layers"])
    heads = read_partly_rotated_heads(facts, config, max(counts))
    rotated, size = heads.pop("rotated"), heads["head_dim"]
    # The converter writes the whole head if config.json does not say what every Bamba has.
    if rotated not in (size // 2, size):
        raise CheckpointError(f"it rotates {rotated} of {size} head dimensions; a Bamba, half")
    return {
        **heads,
        **read_rope(facts, size // 2),
        **_mamba_config(facts, config),
        "attn_layer_indices": [layer for layer, count in enumerate(counts) if count],
        "attention_bias": _any(facts, "attn_q.bias"),
        "mlp_bias": _any(facts, "ffn_up.bias"),
    }


BAMBA = GgufArchitecture(
    name="granitehybrid",
    model_types={"bamba": "BambaForCausalLM"},
    tensors={**TENSORS, "output_norm": place("model.final_layernorm")},
    layer_tensors={
        "attn_norm": place("input_layernorm"),
        "ffn_norm": place("pre_ff_layernorm"),
        **_ATTENTION,
        **_PAIRS,
        **feed_forward("feed_forward"),
        **_mamba("mamba", _recurs),
    },
    keys=DECODER,
    fixed={"hidden_act": "silu"},
    more_config=_read_bamba,
)


def _bamba(metadata: Mapping[str, Any]) -> GgufArchitecture | None:
    """Return Bamba's declaration for a file without any of Granite's multipliers."""
    multiplied = any(f"granitehybrid.{key.suffix}" in metadata for key in _MULTIPLIERS)
    return None if multiplied else BAMBA


_HYBRID_LAYER = {
    "attn_norm": place("input_layernorm"),
    "ffn_norm": place("post_attention_layernorm"),
    **_ATTENTION,
    **_PAIRS,
    **_mamba("mamba", _recurs),
    "ffn_gate_inp": place("block_sparse_moe.router.layer", needed=_granite_sparse),
    "ffn_down_shexp": place("shared_mlp.output_linear", needed=_granite_sparse),
    "ffn_down": place("shared_mlp.output_linear", needed=_granite_dense),
}
GRANITEHYBRID = GgufArchitecture(
    name="granitehybrid",
    model_types={"granitemoehybrid": "GraniteMoeHybridForCausalLM"},
    tensors=TENSORS,
    layer_tensors=_HYBRID_LAYER,
    joined=(
        *_granite_experts(_granite_sparse),
        JoinedPlace(
            name="shared_mlp.input_linear.weight",
            parts=("ffn_gate_shexp.weight", "ffn_up_shexp.weight"),
            needed=_granite_sparse,
        ),
        JoinedPlace(
            name="shared_mlp.input_linear.weight",
            parts=("ffn_gate.weight", "ffn_up.weight"),
            needed=_granite_dense,
        ),
    ),
    keys=(*DECODER, *_MULTIPLIERS),
    fixed={"hidden_act": "silu"},
    more_config=_read_hybrid,
    other=_bamba,
)

# --- Mamba-2, Falcon-H1, Nemotron-H


def _read_mamba2(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    names = {
        "heads": "num_heads",
        "size": "head_dim",
        "groups": "n_groups",
        "state": "state_size",
        "width": "conv_kernel",
    }
    return {
        **_mamba_sizes(facts, names),
        "expand": facts.whole("ssm.inner_size") / config["hidden_size"],
        "use_conv_bias": facts.has("blk.0.ssm_conv1d.bias"),
        "use_bias": facts.has("blk.0.ssm_in.bias"),
    }


MAMBA2 = GgufArchitecture(
    name="mamba2",
    model_types={"mamba2": "Mamba2ForCausalLM"},
    tensors={
        "token_embd": place("backbone.embeddings"),
        "output_norm": place("backbone.norm_f"),
        "output": place("lm_head", needed=optional),
    },
    layer_tensors={"attn_norm": place("norm"), **_mamba("mixer", _always)},
    layers="backbone.layers",
    keys=(
        Key("hidden_size", "embedding_length"),
        LAYERS,
        Key("layer_norm_epsilon", "attention.layer_norm_rms_epsilon", float),
    ),
    fixed={"hidden_act": "silu"},
    more_config=_read_mamba2,
    ignored=("context_length", "attention.head_count", "feed_forward_length"),
)


def _read_falcon(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    heads = read_heads(facts, config)
    return {
        **heads,
        **read_rope(facts, heads["head_dim"]),
        **_mamba_config(facts, config),
        "mamba_d_ssm": facts.whole("ssm.inner_size"),
        "mamba_rms_norm": facts.has("blk.0.ssm_norm.weight"),
        "mamba_norm_before_gate": False,
        # Files hold weights that are multiplied already.
        **dict.fromkeys(_FALCON_MULTIPLIERS, 1.0),
        "mlp_multipliers": [1.0, 1.0],
        "ssm_multipliers": [1.0] * 5,
    }


_FALCON_MULTIPLIERS = [
    f"{of}_multiplier"
    for of in ["attention_in", "attention_out", "embedding", "key", "lm_head", "ssm_in", "ssm_out"]
]
FALCON_H1 = GgufArchitecture(
    name="falcon-h1",
    model_types={"falcon_h1": "FalconH1ForCausalLM"},
    tensors={**TENSORS, "output_norm": place("model.final_layernorm")},
    layer_tensors={
        "attn_norm": place("input_layernorm"),
        "ffn_norm": place("pre_ff_layernorm.weight", bare=True),
        **PROJECTIONS,
        **feed_forward("feed_forward"),
        **_mamba("mamba", _always),
        "ssm_norm": place("mamba.norm", flat=True, needed=optional),
    },
    keys=DECODER,
    fixed={"hidden_act": "silu"},
    more_config=_read_falcon,
)


def _nemotron_kind(letter: str) -> Any:
    def needed(config: Config, layer: int) -> bool:
        return config["hybrid_override_pattern"][layer] == letter

    return needed


def _nemotron_latent(config: Config, layer: int) -> bool:
    return bool(config.get("moe_latent_size")) and _nemotron_kind("E")(config, layer)


def _read_nemotron(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    layers = config["num_hidden_layers"]
    counts = key_heads(facts, layers)
    heads = read_partly_rotated_heads(facts, config, max(counts))
    heads.pop("rotated")
    pattern = "".join(_nemotron_letter(facts, layer) for layer in range(layers))
    names = {
        "heads": "mamba_num_heads",
        "size": "mamba_head_dim",
        "groups": "n_groups",
        "state": "ssm_state_size",
        "width": "conv_kernel",
    }
    plain = [f"blk.{layer}.ffn_up.weight" for layer in range(layers) if pattern[layer] == "-"]
    return {
        **heads,
        **_mamba_sizes(facts, names),
        **_nemotron_experts(facts),
        "intermediate_size": facts.rows(plain[0]) if plain else config["hidden_size"],
        "hybrid_override_pattern": pattern,
        "use_conv_bias": _any(facts, "ssm_conv1d.bias"),
        "use_bias": _any(facts, "ssm_in.bias"),
        "mlp_bias": _any(facts, "ffn_up.bias"),
        "attention_bias": _any(facts, "attn_q.bias"),
        "rope_theta": facts.number("rope.freq_base", 10000.0),
    }


def _nemotron_letter(facts: Facts, layer: int) -> str:
    kinds = {"ssm_in": "M", "attn_q": "*", "ffn_up_exps": "E", "ffn_up": "-"}
    found = [kinds[stem] for stem in kinds if facts.has(f"blk.{layer}.{stem}.weight")]
    if len(found) != 1:
        raise CheckpointError(f"its layer {layer} is of {len(found)} known kinds, not of one")
    return found[0]


def _nemotron_experts(facts: Facts) -> dict[str, Any]:
    if not facts.get("expert_count"):
        return {}
    return {
        "n_routed_experts": facts.whole("expert_count"),
        "num_experts_per_tok": facts.whole("expert_used_count"),
        "n_group": facts.whole("expert_group_count", 1),
        "topk_group": facts.whole("expert_group_used_count", 1),
        "moe_intermediate_size": facts.whole("expert_feed_forward_length"),
        "moe_shared_expert_intermediate_size": facts.whole("expert_shared_feed_forward_length"),
        "n_shared_experts": facts.whole("expert_shared_count", 1),
        "norm_topk_prob": facts.flag("expert_weights_norm", True),
        "routed_scaling_factor": facts.number("expert_weights_scale", 1.0),
        "moe_latent_size": facts.get("moe_latent_size"),
    }


_MIX = "mixer"
_NEMOTRON_LAYER = {
    "attn_norm": place("norm"),
    "attn_q": replace(_ROTATED["attn_q"], name=f"{_MIX}.q_proj", needed=_nemotron_kind("*")),
    "attn_k": replace(_ROTATED["attn_k"], name=f"{_MIX}.k_proj", needed=_nemotron_kind("*")),
    "attn_v": place(f"{_MIX}.v_proj", needed=_nemotron_kind("*")),
    "attn_output": place(f"{_MIX}.o_proj", needed=_nemotron_kind("*")),
    **_mamba(_MIX, _nemotron_kind("M")),
    "ffn_up": place(f"{_MIX}.up_proj", needed=_nemotron_kind("-")),
    "ffn_down": place(f"{_MIX}.down_proj", needed=_nemotron_kind("-")),
    "ffn_gate_inp": place(f"{_MIX}.gate", needed=_nemotron_kind("E")),
    "exp_probs_b.bias": place(f"{_MIX}.gate.e_score_correction_bias", needed=_nemotron_kind("E")),
    "ffn_up_exps": place(f"{_MIX}.experts.{{e}}.up_proj", needed=_nemotron_kind("E")),
    "ffn_down_exps": place(f"{_MIX}.experts.{{e}}.down_proj", needed=_nemotron_kind("E")),
    "ffn_up_shexp": place(f"{_MIX}.shared_experts.up_proj", needed=_nemotron_kind("E")),
    "ffn_down_shexp": place(f"{_MIX}.shared_experts.down_proj", needed=_nemotron_kind("E")),
    "ffn_latent_down": place(f"{_MIX}.fc1_latent_proj", needed=_nemotron_latent),
    "ffn_latent_up": place(f"{_MIX}.fc2_latent_proj", needed=_nemotron_latent),
}


def _nemotron(name: str) -> GgufArchitecture:
    return GgufArchitecture(
        name=name,
        model_types={"nemotron_h": "NemotronHForCausalLM"},
        tensors={
            "token_embd": place("backbone.embeddings"),
            "output_norm": place("backbone.norm_f"),
            "output": place("lm_head", needed=optional),
        },
        layer_tensors=_NEMOTRON_LAYER,
        layers="backbone.layers",
        keys=(
            *SIZES,
            Key("layer_norm_epsilon", "attention.layer_norm_rms_epsilon", float, 1e-5),
        ),
        fixed={"mlp_hidden_act": "relu2", "mamba_hidden_act": "silu"},
        more_config=_read_nemotron,
        # Widths are those of the tensors, and nothing rotates.
        ignored=("attention.layer_norm_epsilon", "feed_forward_length", "rope.dimension_count"),
    )


ALL = (
    GRANITEMOE,
    GRANITEHYBRID,
    MAMBA2,
    FALCON_H1,
    _nemotron("nemotron_h"),
    _nemotron("nemotron_h_moe"),
)
