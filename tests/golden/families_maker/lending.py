"""The grid of Gemma 3n and 4, whose last layers attend to the keys and values of earlier ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.golden.families_maker.case import Case, Shapes
from tests.golden.families_maker.decoders import decoder

LOCAL, WHOLE = "sliding_attention", "full_attention"


def gemma3n(**sizes: Any) -> dict[str, Any]:
    """As published: most layers have a window, and each has a width and a share of its own."""
    layers = sizes.get("num_hidden_layers", 8)
    own = {
        "activation_sparsity_pattern": [0.75] * 3 + [0.0] * (layers - 3),
        "altup_active_idx": 0,
        "altup_coef_clip": 120.0,
        "altup_correct_scale": True,
        "altup_lr_multiplier": 1.0,
        "altup_num_inputs": 3,
        "attention_bias": False,
        "final_logit_softcapping": 9.0,
        "head_dim": 12,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 48,
        "hidden_size_per_layer_input": 10,
        "intermediate_size": [40] * layers,
        "laurel_rank": 6,
        "layer_types": [LOCAL, WHOLE] * (layers // 2),
        "num_hidden_layers": layers,
        "num_kv_shared_layers": 2,
        "pad_token_id": 0,
        "query_pre_attn_scalar": 256,
        "rope_local_base_freq": 100.0,
        "rope_theta": 1000000.0,
        "sliding_window": 8,
        "tie_word_embeddings": True,
        "vocab_size_per_layer_input": 90,
    }
    made = decoder("Gemma3nForCausalLM", "gemma3n_text", **own | sizes)
    del made["hidden_act"]
    return made


def gemma4(**sizes: Any) -> dict[str, Any]:
    """As the small ones are published: shared keys, inputs per layer, larger heads at the end."""
    layers = sizes.get("num_hidden_layers", 8)
    own = {
        "attention_bias": False,
        "attention_k_eq_v": False,
        "enable_moe_block": False,
        "final_logit_softcapping": 9.0,
        "global_head_dim": 16,
        "head_dim": 12,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size_per_layer_input": 10,
        "layer_types": [LOCAL, WHOLE] * (layers // 2),
        "moe_intermediate_size": None,
        "num_experts": None,
        "num_global_key_value_heads": None,
        "num_hidden_layers": layers,
        "num_kv_shared_layers": 2,
        "pad_token_id": 0,
        "rope_parameters": turning(0.25),
        "sliding_window": 8,
        "tie_word_embeddings": True,
        "top_k_experts": None,
        "use_bidirectional_attention": None,
        "use_double_wide_mlp": True,
        "vocab_size_per_layer_input": 97,
    }
    made = decoder("Gemma4ForCausalLM", "gemma4_text", **own | sizes)
    return {k: v for k, v in made.items() if k not in ("hidden_act", "rope_scaling", "rope_theta")}


def turning(share: float) -> dict[str, Any]:
    whole = {"partial_rotary_factor": share, "rope_theta": 1e6, "rope_type": "proportional"}
    return {WHOLE: whole, LOCAL: {"rope_theta": 100.0, "rope_type": "default"}}


def with_shared_keys(config: Mapping[str, Any]) -> Shapes:
    """Projections and norms that published files hold for layers that need none."""
    layers, size = config["num_hidden_layers"], config["head_dim"]
    rows = config["num_key_value_heads"] * size
    shapes: Shapes = {}
    for index in range(layers - config["num_kv_shared_layers"], layers):
        name = f"model.layers.{index}.self_attn"
        shapes |= {f"{name}.{part}_proj.weight": (rows, config["hidden_size"]) for part in "kv"}
        shapes[f"{name}.k_norm.weight"] = (size,)
    return shapes


CASES = [
    Case(
        name="gemma3n",
        config=gemma3n(),
        tokens=21,
        without={
            "window": {"sliding_window": 21},
            "local base": {"rope_local_base_freq": 1000000.0},
            "sparse gates": {"activation_sparsity_pattern": [0.0] * 8},
            "cap": {"final_logit_softcapping": 90.0},
            "scale": {"altup_correct_scale": False},
        },
    ),
    Case(
        name="gemma3n_mqa_shared_tail",
        config=gemma3n(
            activation_sparsity_pattern=[0.0, 0.5, 0.0, 0.0, 0.9, 0.0],
            altup_active_idx=1,
            altup_correct_scale=False,
            altup_num_inputs=2,
            layer_types=[LOCAL, WHOLE, LOCAL, LOCAL, LOCAL, WHOLE],
            intermediate_size=[40, 24, 40, 40, 24, 24],
            num_attention_heads=6,
            num_hidden_layers=6,
            num_key_value_heads=1,
            num_kv_shared_layers=3,
            rope_scaling={"factor": 8.0, "rope_type": "linear"},
        ),
        spare=with_shared_keys,
        tokens=21,
        without={
            "active": {"altup_active_idx": 0},
            "linear": {"rope_scaling": None},
        },
    ),
    Case(
        name="gemma4",
        config=gemma4(),
        tokens=21,
        without={
            "window": {"sliding_window": 21},
            "share of a head": {"rope_parameters": turning(1.0)},
            "cap": {"final_logit_softcapping": None},
        },
    ),
    Case(
        name="gemma4_experts_keys_as_values",
        config=gemma4(
            attention_k_eq_v=True,
            enable_moe_block=True,
            final_logit_softcapping=None,
            hidden_size_per_layer_input=0,
            layer_types=[LOCAL, LOCAL, WHOLE],
            moe_intermediate_size=20,
            num_experts=5,
            num_global_key_value_heads=1,
            num_hidden_layers=3,
            num_kv_shared_layers=0,
            top_k_experts=2,
            use_bidirectional_attention="vision",
            use_double_wide_mlp=False,
        ),
        tokens=21,
    ),
]
