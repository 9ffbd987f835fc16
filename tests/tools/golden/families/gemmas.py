"""Gemma of all generations; in 3n and 4 the last layers use keys and values of earlier ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.tools.golden.common import Shapes
from tests.tools.golden.families.case import Case

SLIDING = "sliding_attention"


def published_tower(name: str) -> str:
    """What sees images lies one part deeper in the published files."""
    return name.replace("vision_tower.", "vision_tower.vision_model.")


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
    Case("gemma"),  # as first published: the exact GELU is written, the approximate one is meant
    Case("gemma_mqa"),
    Case(
        "gemma2",
        tokens=21,
        without={
            "cap of attention": {"attn_logit_softcapping": None},
            "cap of logits": {"final_logit_softcapping": None},
            "window": {"sliding_window": 21},
            "scale": {"query_pre_attn_scalar": 10},
        },
    ),
    # The prompt is one longer than the window.
    Case("gemma2_mqa", tokens=21, without={"window": {"sliding_window": 21}}),
    Case(
        "gemma3",
        tokens=21,
        without={
            "window": {"sliding_window": 21},
            "pattern": {"sliding_window_pattern": 2},
            "local base": {"rope_local_base_freq": 1000000.0},
            "scale": {"query_pre_attn_scalar": 12},
        },
    ),
    # As the 4B and larger: stretched positions in the global layers.
    Case("gemma3_linear", tokens=40, without={"linear": {"rope_scaling": None}}),
    # As the 270M is published: the layers are listed, and the pattern is for information.
    Case(
        "gemma3_layer_types", tokens=21, without={"global layers": {"layer_types": [SLIDING] * 4}}
    ),
    # As the 4B and larger are published: a text model inside, its usual values left out.
    Case("gemma3_with_images", tokens=21, published=published_tower),
    # The cap of attention is stored and applied nowhere.
    Case("gemma3_caps", tokens=21, without={"cap of logits": {"final_logit_softcapping": None}}),
    # As transformers 5 writes it: positions per kind of layer.
    Case(
        "gemma3_rope_parameters",
        tokens=21,
        without={"bases": {"rope_parameters.full_attention.rope_theta": 100.0}},
    ),
    Case(
        "gemma3n",
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
        "gemma3n_mqa_shared_tail",
        tokens=21,
        without={"active": {"altup_active_idx": 0}, "linear": {"rope_scaling": None}},
        spare=with_shared_keys,
    ),
    # As the small ones are published: inputs per layer, larger heads at the end.
    Case(
        "gemma4",
        tokens=21,
        without={
            "window": {"sliding_window": 21},
            "share of a head": {"rope_parameters.full_attention.partial_rotary_factor": 1.0},
            "cap": {"final_logit_softcapping": None},
        },
    ),
    Case("gemma4_experts_keys_as_values", tokens=21),
]
