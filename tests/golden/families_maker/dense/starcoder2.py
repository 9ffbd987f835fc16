"""Golden cases of StarCoder2."""

from __future__ import annotations

from typing import Any

from tests.golden.families_maker.case import Case
from tests.golden.families_maker.decoders import decoder, new_rope


def starcoder2(**sizes: Any) -> dict[str, Any]:
    own = {
        "activation_function": "gelu",
        "attention_softmax_in_fp32": True,
        "embedding_dropout": 0.1,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_epsilon": 1e-05,
        "mlp_type": "default",
        "norm_epsilon": 1e-05,
        "norm_type": "layer_norm",
        "residual_dropout": 0.1,
        "rope_theta": 999999.4420358813,
        "scale_attention_softmax_in_fp32": True,
        "scale_attn_weights": True,
        "sliding_window": 8,
        "use_bias": True,
    }
    config = decoder("Starcoder2ForCausalLM", "starcoder2", **own | sizes)
    del config["rms_norm_eps"]
    return config


def tied(config: dict[str, Any]) -> dict[str, Any]:
    """As published: the head is tied, and nothing says so."""
    return {key: value for key, value in config.items() if key != "tie_word_embeddings"}


CASES = [
    Case(
        name="starcoder2",
        config=tied(starcoder2()),
        tokens=21,
        without={"window": {"sliding_window": None}},
    ),
    Case(
        name="starcoder2_unbiased",
        config=starcoder2(use_bias=False, num_key_value_heads=1, sliding_window=None),
        without={"tanh": {"hidden_act": "relu"}},
    ),
    Case(
        name="starcoder2_rope_parameters",
        config=new_rope(starcoder2(hidden_size=40, num_key_value_heads=4)),
        tokens=21,
        without={"window": {"sliding_window": 21}},
    ),
]
