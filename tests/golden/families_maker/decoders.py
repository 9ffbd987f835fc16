"""The grid of Llama, Mistral, Qwen, OLMo 2 and Phi-3: what they share is the shape of config.json.

Keys are those of the config.json of published checkpoints, most of which are older than
transformers 5; the cases called `rope_parameters` are as transformers 5 writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.golden.families_maker.case import Case, Shapes

PLAIN_ROPE = {"rope_scaling": None}


def decoder(architecture: str, model_type: str, **sizes: Any) -> dict[str, Any]:
    """A config.json with the keys that all of these families have."""
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 48,
        "initializer_range": 0.02,
        "intermediate_size": 64,
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.45.0",
        "use_cache": True,
        "vocab_size": 97,
    } | sizes


def llama(**sizes: Any) -> dict[str, Any]:
    own = {"attention_bias": False, "mlp_bias": False, "pretraining_tp": 1}
    return decoder("LlamaForCausalLM", "llama", **own | sizes)


def mistral(**sizes: Any) -> dict[str, Any]:
    return decoder("MistralForCausalLM", "mistral", **sizes)


def qwen2(**sizes: Any) -> dict[str, Any]:
    own = {"max_window_layers": 21, "sliding_window": 32768, "use_sliding_window": False}
    return decoder("Qwen2ForCausalLM", "qwen2", **own | sizes)


def qwen3(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "head_dim": 10,
        "max_window_layers": 28,
        "sliding_window": None,
        "use_sliding_window": False,
    }
    return decoder("Qwen3ForCausalLM", "qwen3", **own | sizes)


def olmo2(**sizes: Any) -> dict[str, Any]:
    return decoder("Olmo2ForCausalLM", "olmo2", **{"attention_bias": False} | sizes)


def phi3(**sizes: Any) -> dict[str, Any]:
    own = {
        "attention_bias": False,
        "embd_pdrop": 0.0,
        "original_max_position_embeddings": 128,
        "pad_token_id": 2,
        "resid_pdrop": 0.0,
        "sliding_window": None,
    }
    return decoder("Phi3ForCausalLM", "phi3", **own | sizes)


def new_rope(config: dict[str, Any], **rope: Any) -> dict[str, Any]:
    """As transformers 5 writes it: one rope_parameters, and dtype."""
    moved = {"rope_theta", "rope_scaling", "torch_dtype"}
    kept = {key: value for key, value in config.items() if key not in moved}
    theta = {"rope_theta": config["rope_theta"]}
    new = {"rope_parameters": {"rope_type": "default"} | theta | rope, "dtype": "bfloat16"}
    return kept | new | {"transformers_version": "5.23.0"}


def inverse_frequencies(config: Mapping[str, Any]) -> Shapes:
    """What the first exporters of Llama stored per layer."""
    half = config["hidden_size"] // config["num_attention_heads"] // 2
    return {
        f"model.layers.{i}.self_attn.rotary_emb.inv_freq": (half,)
        for i in range(config["num_hidden_layers"])
    }


LLAMA3 = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 16,
    "rope_type": "llama3",
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 16, "type": "yarn"}
# Per pair of the rotary positions, as the long Phi-3 checkpoints have them.
SHORT, LONG = [1.0, 1.05, 1.15, 1.4, 1.9, 2.1], [1.1, 1.6, 2.7, 4.5, 7.0, 9.5]
LONGROPE = {"long_factor": LONG, "short_factor": SHORT, "type": "longrope"}

LLAMA_CASES = [
    Case(
        name="llama_tied",
        config=llama(
            num_hidden_layers=3,
            intermediate_size=80,
            num_attention_heads=6,
            head_dim=8,
            tie_word_embeddings=True,
            rms_norm_eps=1e-05,
        ),
    ),
    Case(
        name="llama_untied_mqa",
        config=llama(head_dim=10, num_key_value_heads=1, rope_theta=500000.0),
        without={"theta": {"rope_theta": 10000.0}},
    ),
    Case(
        name="llama_all_heads",  # as Llama 1: no kv heads in the file, frequencies stored
        config={
            key: value
            for key, value in llama(hidden_size=40).items()
            if key not in ("num_key_value_heads", "rope_theta", "mlp_bias", "attention_bias")
        },
        spare=inverse_frequencies,
    ),
    Case(
        name="llama_llama3_biases",
        config=llama(
            hidden_size=32,
            intermediate_size=48,
            num_key_value_heads=4,
            head_dim=8,
            attention_bias=True,
            mlp_bias=True,
            rope_theta=500000.0,
            rope_scaling=LLAMA3,
        ),
        without={"llama3": PLAIN_ROPE},
    ),
    Case(
        name="llama_linear",
        config=llama(rope_scaling={"factor": 4.0, "type": "linear"}),
        without={"linear": PLAIN_ROPE},
    ),
    Case(
        name="llama_yarn",
        config=llama(head_dim=16, rope_scaling=YARN | {"beta_fast": 32.0, "beta_slow": 1.0}),
        without={
            "yarn": PLAIN_ROPE,
            "attention_factor": {"rope_scaling": YARN | {"attention_factor": 1.0}},
        },
    ),
    Case(
        name="llama_rope_parameters",
        config=new_rope(llama(head_dim=12, rope_theta=500000.0), **LLAMA3),
        without={"llama3": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}},
    ),
]

MISTRAL_CASES = [
    Case(
        name="mistral_window",
        config=mistral(sliding_window=8, head_dim=10),
        tokens=21,
        without={"window": {"sliding_window": None}, "width": {"sliding_window": 7}},
    ),
    Case(
        name="mistral_window_of_the_prompt",
        config=mistral(sliding_window=21, num_key_value_heads=1),
        tokens=22,  # the last token is the first that does not see the first
        without={"window": {"sliding_window": 22}},
    ),
    Case(
        name="mistral_no_window",
        config=mistral(sliding_window=None, rope_theta=1000000.0),
        without={"all": {"sliding_window": 8}},
    ),
]

QWEN2_CASES = [
    Case(name="qwen2_tied", config=qwen2(tie_word_embeddings=True, rope_theta=1000000.0)),
    Case(name="qwen2_untied_mqa", config=qwen2(num_key_value_heads=1, hidden_size=40)),
    Case(
        name="qwen2_window",
        config=qwen2(
            num_hidden_layers=4, sliding_window=8, max_window_layers=2, use_sliding_window=True
        ),
        tokens=21,
        without={
            "window": {"use_sliding_window": False},
            "from a layer on": {"max_window_layers": 0},
        },
    ),
    Case(
        name="qwen2_window_unused",  # as most are published: a width, and no use of it
        config=qwen2(sliding_window=8, max_window_layers=0),
        tokens=21,
        without={"all": {"use_sliding_window": True}},
    ),
    Case(
        name="qwen2_yarn",
        config=qwen2(hidden_size=64, rope_scaling=YARN),
        without={"yarn": PLAIN_ROPE},
    ),
]

QWEN3_CASES = [
    Case(name="qwen3_tied", config=qwen3(tie_word_embeddings=True, rope_theta=1000000)),
    Case(name="qwen3_untied_mqa", config=qwen3(head_dim=12, num_key_value_heads=1)),
    Case(
        name="qwen3_biases",
        config=qwen3(attention_bias=True, num_key_value_heads=4, rope_scaling=YARN),
        without={"yarn": PLAIN_ROPE},
    ),
    Case(name="qwen3_rope_parameters", config=new_rope(qwen3(rope_theta=1000000))),
]

OLMO2_CASES = [
    Case(name="olmo2", config=olmo2(num_key_value_heads=4, rope_theta=500000)),
    Case(name="olmo2_grouped", config=olmo2(hidden_size=40, num_hidden_layers=3)),
    Case(name="olmo2_tied", config=olmo2(tie_word_embeddings=True, num_key_value_heads=1)),
]

PHI3_CASES = [
    Case(name="phi3", config=phi3(num_key_value_heads=4)),
    Case(
        name="phi3_window",
        config=phi3(sliding_window=8),
        tokens=21,
        without={"window": {"sliding_window": None}},
    ),
    Case(
        name="phi3_longrope_short",  # within the original context, though served with a longer one
        config=phi3(rope_scaling=LONGROPE, original_max_position_embeddings=24),
        without={"longrope": PLAIN_ROPE, "short": {"original_max_position_embeddings": 23}},
    ),
    Case(
        name="phi3_longrope_long",
        config=phi3(rope_scaling=LONGROPE, original_max_position_embeddings=16),
        without={"longrope": PLAIN_ROPE, "long": {"original_max_position_embeddings": 64}},
    ),
    Case(
        name="phi3_partial_tied",  # as Phi-4 mini
        config=phi3(
            hidden_size=64,
            partial_rotary_factor=0.75,
            tie_word_embeddings=True,
            rope_scaling=LONGROPE,
            original_max_position_embeddings=16,
        ),
        without={"longrope": PLAIN_ROPE},
    ),
    Case(
        name="phi3_partial",
        config=phi3(hidden_size=64, partial_rotary_factor=0.5, num_key_value_heads=1),
        without={"partial": {"partial_rotary_factor": 1.0}},
    ),
]

CASES = LLAMA_CASES + MISTRAL_CASES + QWEN2_CASES + QWEN3_CASES + OLMO2_CASES + PHI3_CASES
