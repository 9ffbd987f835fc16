"""The grid of families whose layers keep a state: LFM2."""

from __future__ import annotations

from typing import Any

from tests.golden.families_maker.case import Case
from tests.golden.families_maker.decoders import decoder


def lfm2(**sizes: Any) -> dict[str, Any]:
    own = {
        "block_auto_adjust_ff_dim": True,
        "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 16,
        "conv_L_cache": 3,
        "conv_bias": False,
        "layer_types": ["conv", "full_attention", "conv"],
        "norm_eps": 1e-05,
        "num_hidden_layers": 3,
        "rope_theta": 1000000.0,
        "tie_embedding": True,
    }
    made = decoder("Lfm2ForCausalLM", "lfm2", **own | sizes)
    return {k: v for k, v in made.items() if k not in _NOT_OF_LFM2}


_NOT_OF_LFM2 = ("hidden_act", "rms_norm_eps", "rope_scaling", "tie_word_embeddings")

CASES = [
    Case(
        name="lfm2",
        config=lfm2(),
    ),
    Case(
        name="lfm2_wide_conv_biased",
        config=lfm2(
            conv_L_cache=5,
            conv_bias=True,
            num_key_value_heads=1,
            block_auto_adjust_ff_dim=False,
            layer_types=["conv", "conv", "full_attention"],
        ),
    ),
]
