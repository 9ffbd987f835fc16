"""Golden cases of Command R and Command R7B."""

from __future__ import annotations

from typing import Any

from tests.golden.families_maker.case import Case
from tests.golden.families_maker.decoders import YARN, decoder, new_rope


def cohere(model_type: str = "cohere", name: str = "Cohere", **sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "layer_norm_eps": 1e-05,
        "logit_scale": 0.0625,
        "rope_theta": 8000000.0,
        "use_qk_norm": False,
    }
    config = decoder(f"{name}ForCausalLM", model_type, **own | sizes)
    return {k: v for k, v in config.items() if k not in ("rms_norm_eps", "tie_word_embeddings")}


def cohere2(**sizes: Any) -> dict[str, Any]:
    own = {
        "cache_implementation": "hybrid",
        "head_dim": 12,
        "logit_scale": 0.25,
        "num_hidden_layers": 4,
        "order_of_interleaved_layers": "local_attn_first",
        "position_embedding_type": "rope_gptj",
        "rope_theta": 50000.0,
        "rotary_pct": 1.0,
        "sliding_window": 8,
        "sliding_window_pattern": 4,
        "use_embedding_sharing": True,
        "use_gated_activation": True,
        "use_parallel_block": True,
        "use_parallel_embedding": False,
    }
    return cohere("cohere2", "Cohere2", **own | sizes)


FULL, SLIDING = "full_attention", "sliding_attention"

CASES = [
    Case(name="cohere", config=cohere(), without={"logits": {"logit_scale": 1.0}}),
    Case(
        name="cohere_normed_heads",  # as Command R+
        config=cohere(
            attention_bias=True,
            model_max_length=128,
            num_hidden_layers=3,
            use_qk_norm=True,
        ),
        without={"logits": {"logit_scale": 1.0}},
    ),
    Case(
        name="cohere_untied",
        config=cohere(num_key_value_heads=1, hidden_size=64, rope_scaling=YARN)
        | {"tie_word_embeddings": False},
        without={"yarn": {"rope_scaling": None}},
    ),
    Case(
        name="cohere2",
        config=cohere2(),
        tokens=21,
        without={
            "window": {"sliding_window": 21},
            "the layer without rope": {"sliding_window": 21, "sliding_window_pattern": 5},
        },
    ),
    Case(
        name="cohere2_layer_types",
        config={
            key: value
            for key, value in new_rope(
                cohere2(layer_types=[SLIDING, FULL, FULL, SLIDING], num_key_value_heads=1)
            ).items()
            if key != "sliding_window_pattern"
        },
        tokens=21,
        without={"kinds": {"layer_types": [SLIDING] * 4}},
    ),
]
