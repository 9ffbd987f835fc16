"""Decoders with recurrent layers, read as llama.cpp's converter writes them, and not written.

Mamba-2, Granite 4.0 (and 3 with experts), Falcon-H1, Nemotron-H and 3, LFM2 with experts,
Qwen3-Next and Qwen3.5. Files hold -exp(A_log), and a layer's kind as its number of key heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from model_server.checkpoints.gguf.architecture import (
    Config,
    GgufArchitecture,
    JoinedPlace,
    TensorPlace,
    optional,
    place,
    rotated,
)
from model_server.checkpoints.gguf.architectures.experts import only_sigmoid
from model_server.checkpoints.gguf.architectures.lfm2 import LFM2, key_heads
from model_server.checkpoints.gguf.architectures.llama import (
    PROJECTIONS,
    TENSORS,
    feed_forward,
)
from model_server.checkpoints.gguf.facts import Facts, Key
from model_server.checkpoints.gguf.heads import (
    DECODER,
    FFW,
    LAYERS,
    RMS_EPS,
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


def _read_granitemoe(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    heads = read_heads(facts, config)
    biased = {"attention_bias": facts.has("blk.0.attn_q.bias")}
    return heads | read_rope(facts, heads["head_dim"]) | biased


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
    more_config=_read_granitemoe,
)


def _read_hybrid(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    if facts.get("attention.scale") is None:
        raise CheckpointError("it is a Bamba, which is read from its Hugging Face folder only")
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


_FALCON_MULTIPLIERS = (
    "attention_in_multiplier",
    "attention_out_multiplier",
    "embedding_multiplier",
    "key_multiplier",
    "lm_head_multiplier",
    "ssm_in_multiplier",
    "ssm_out_multiplier",
)
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


NEMOTRON_H, NEMOTRON_H_MOE = _nemotron("nemotron_h"), _nemotron("nemotron_h_moe")

# --- LFM2 with experts


def _lfm2_sparse(config: Config, layer: int) -> bool:
    return layer >= config["num_dense_layers"]


def _lfm2_dense(config: Config, layer: int) -> bool:
    return not _lfm2_sparse(config, layer)


def _read_lfm2moe(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    only_sigmoid(facts)
    biased = _any(facts, "exp_probs_b.bias")
    more = LFM2.more_config(facts, config)
    more.pop("block_auto_adjust_ff_dim")
    return more | {"use_expert_bias": biased}


_LFM2_FFW = {"ffn_gate": "w1", "ffn_up": "w3", "ffn_down": "w2"}
LFM2MOE = GgufArchitecture(
    name="lfm2moe",
    model_types={"lfm2_moe": "Lfm2MoeForCausalLM"},
    tensors=LFM2.tensors,
    layer_tensors={
        **LFM2.layer_tensors,
        **{
            stem: place(f"feed_forward.{name}", needed=_lfm2_dense)
            for stem, name in _LFM2_FFW.items()
        },
        **{
            f"{stem}_exps": place(f"feed_forward.experts.{{e}}.{name}", needed=_lfm2_sparse)
            for stem, name in _LFM2_FFW.items()
        },
        "ffn_gate_inp": place("feed_forward.gate", needed=_lfm2_sparse),
        "exp_probs_b.bias": place("feed_forward.expert_bias", needed=optional),
    },
    keys=(
        *LFM2.keys,
        Key("num_experts", "expert_count"),
        Key("num_experts_per_tok", "expert_used_count"),
        Key("moe_intermediate_size", "expert_feed_forward_length"),
        Key("num_dense_layers", "leading_dense_block_count", default=0, least=0),
        Key("norm_topk_prob", "expert_weights_norm", bool, True),
        Key("routed_scaling_factor", "expert_weights_scale", float, 1.0),
    ),
    fixed=LFM2.fixed,
    more_config=_read_lfm2moe,
)

# --- Qwen3-Next and Qwen3.5: gated delta nets


@dataclass(frozen=True, slots=True)
class _ValueHeads:
    """Qwen3.5's files count value heads first within a group, then the groups.

    Here all heads of a group follow one another. `first` rows, of queries and keys, stay.
    """

    size: str | None  # config.json key with the numbers per head; None: one
    after_keys: bool = False

    def for_tensor(self, rows: int, config: Config, name: str) -> np.ndarray:
        groups, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
        size = config[self.size] if self.size else 1
        first = 2 * groups * config["linear_key_head_dim"] if self.after_keys else 0
        if rows != first + heads * size:
            raise CheckpointError(f"tensor {name} has {rows} rows; its heads need {heads * size}")
        file_head = np.arange(heads).reshape(-1, groups).T.ravel()
        order = file_head[:, None] * size + np.arange(size)
        return np.concatenate([np.arange(first), first + order.ravel()])


_ALONE, _VALUES = _ValueHeads(None), _ValueHeads("linear_value_head_dim")
_AFTER = _ValueHeads("linear_value_head_dim", after_keys=True)


def _plus_one(name: str, **rest: Any) -> TensorPlace:
    return place(name, plus=1.0, **rest)


def _delta(order: bool) -> dict[str, TensorPlace]:
    """Return a delta net's tensors; order: value heads are in another one in the file."""
    alone, values, after = (_ALONE, _VALUES, _AFTER) if order else (None, None, None)
    name = "linear_attn"
    return {
        "ssm_a": place(
            f"{name}.A_log", flat=True, decay=True, bare=True, order=alone, needed=_recurs
        ),
        "ssm_conv1d": place(f"{name}.conv1d", filters=True, order=after, needed=_recurs),
        "ssm_dt.bias": place(f"{name}.dt_bias", order=alone, needed=_recurs),
        "ssm_norm": place(f"{name}.norm", needed=_recurs),
        "ssm_out": place(f"{name}.out_proj", columns=values, needed=_recurs),
    }


_QWEN = {
    "attn_norm": _plus_one("input_layernorm"),
    "post_attention_norm": _plus_one("post_attention_layernorm"),
    **_ATTENTION,
    "attn_q_norm": _plus_one("self_attn.q_norm", needed=_attends),
    "attn_k_norm": _plus_one("self_attn.k_norm", needed=_attends),
}
_QWEN_TENSORS = {**TENSORS, "output_norm": _plus_one("model.norm")}
_QWEN_EXPERTS = {
    "ffn_gate_inp": place("mlp.gate"),
    **feed_forward("mlp.experts.{e}", "_exps"),
    **feed_forward("mlp.shared_expert", "_shexp"),
    "ffn_gate_inp_shexp": place("mlp.shared_expert_gate"),
}
_QWEN_EXPERT_KEYS = (
    Key("num_experts", "expert_count"),
    Key("num_experts_per_tok", "expert_used_count"),
    Key("moe_intermediate_size", "expert_feed_forward_length"),
    Key("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
)
_QWEN_FIXED = {"hidden_act": "silu", "attention_bias": False}


def _read_delta(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    heads = read_partly_rotated_heads(facts, config)
    turning = heads.pop("rotated")
    values, inner = facts.whole("ssm.time_step_rank"), facts.whole("ssm.inner_size")
    if inner % values:
        raise CheckpointError(f"its ssm.inner_size {inner} is not a multiple of {values} heads")
    return {
        **heads,
        **read_rope(facts, turning),
        "partial_rotary_factor": turning / heads["head_dim"],
        "layer_types": _kinds(facts, config["num_hidden_layers"]),
        "linear_conv_kernel_dim": facts.whole("ssm.conv_kernel"),
        "linear_key_head_dim": facts.whole("ssm.state_size"),
        "linear_num_key_heads": facts.whole("ssm.group_count"),
        "linear_num_value_heads": values,
        "linear_value_head_dim": inner // values,
    }


def _kinds(facts: Facts, layers: int) -> list[str]:
    every = facts.whole("full_attention_interval", 4)
    usual = [(layer + 1) % every != 0 for layer in range(layers)]
    recurs = facts.listed("attention.recurrent_layers", layers, usual)
    return ["linear_attention" if its else "full_attention" for its in recurs]


def _read_qwen35(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    facts.listed("rope.dimension_sections", 3, [0] * 3)  # of pictures: a text has one position
    return _read_delta(facts, config)


def _of_groups(config: Config) -> np.ndarray:
    """Rows of Qwen3-Next's q, k, v and z, here group by group, there one kind after another."""
    groups, ratio = config["linear_num_key_heads"], config["linear_num_value_heads"]
    keys = config["linear_key_head_dim"]
    values = ratio // groups * config["linear_value_head_dim"]
    widths = (keys, keys, values, values)
    starts = np.cumsum([0, *(width * groups for width in widths[:3])])
    return np.concatenate(
        [
            start + group * width + np.arange(width)
            for group in range(groups)
            for start, width in zip(starts, widths, strict=True)
        ]
    )


QWEN3NEXT = GgufArchitecture(
    name="qwen3next",
    model_types={"qwen3_next": "Qwen3NextForCausalLM"},
    tensors=_QWEN_TENSORS,
    layer_tensors={
        **_QWEN,
        **_delta(order=False),
        "ssm_ba": place("linear_attn.in_proj_ba", needed=_recurs),
        **_QWEN_EXPERTS,
    },
    joined=(
        JoinedPlace(
            name="linear_attn.in_proj_qkvz.weight",
            parts=("attn_qkv.weight", "attn_gate.weight"),
            order=_of_groups,
            needed=_recurs,
        ),
    ),
    keys=(*DECODER, *_QWEN_EXPERT_KEYS),
    fixed={**_QWEN_FIXED, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True},
    more_config=_read_delta,
)
_QWEN35_LAYER = {
    **_QWEN,
    **_delta(order=True),
    "attn_qkv": place("linear_attn.in_proj_qkv", order=_AFTER, needed=_recurs),
    "attn_gate": place("linear_attn.in_proj_z", order=_VALUES, needed=_recurs),
    "ssm_alpha": place("linear_attn.in_proj_a", order=_ALONE, needed=_recurs),
    "ssm_beta": place("linear_attn.in_proj_b", order=_ALONE, needed=_recurs),
}
QWEN35 = GgufArchitecture(
    name="qwen35",
    model_types={"qwen3_5_text": "Qwen3_5ForCausalLM"},
    tensors=_QWEN_TENSORS,
    layer_tensors={**_QWEN35_LAYER, **feed_forward()},
    keys=(*SIZES, FFW, RMS_EPS),
    fixed=_QWEN_FIXED,
    more_config=_read_qwen35,
)
QWEN35MOE = GgufArchitecture(
    name="qwen35moe",
    model_types={"qwen3_5_moe_text": "Qwen3_5MoeForCausalLM"},
    tensors=_QWEN_TENSORS,
    layer_tensors={**_QWEN35_LAYER, **_QWEN_EXPERTS},
    keys=(*SIZES, RMS_EPS, *_QWEN_EXPERT_KEYS),
    fixed=_QWEN_FIXED,
    more_config=_read_qwen35,
    ignored=("feed_forward_length",),
)
ALL = (
    GRANITEMOE,
    GRANITEHYBRID,
    MAMBA2,
    FALCON_H1,
    NEMOTRON_H,
    NEMOTRON_H_MOE,
    LFM2MOE,
    QWEN3NEXT,
    QWEN35,
    QWEN35MOE,
)
