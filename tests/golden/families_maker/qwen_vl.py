"""The grid of Qwen's models with image or audio input, for prompts of text; see media_maker too."""

from __future__ import annotations

from tests.golden.families_maker.case import Case
from tests.golden.media_maker.qwen import (
    flat_names,
    qwen2_5_vl,
    qwen2_vl,
    qwen3_vl,
    qwen3_vl_moe,
    turned_experts,
)
from tests.golden.media_maker.qwen_audio import encoder, qwen2_audio

SECTIONS = {"mrope_section": [1, 2, 3]}
YARN = {"factor": 4.0, "original_max_position_embeddings": 16, "type": "yarn"}


CASES = [
    Case(
        name="qwen2_vl",
        config=qwen2_vl({}),
        published=flat_names,
        without={"theta": {"rope_theta": 10000.0}},
    ),
    Case(
        name="qwen2_5_vl",
        config=qwen2_5_vl({}, num_key_value_heads=1),
        published=flat_names,
        without={"theta": {"rope_theta": 10000.0}},
    ),
    Case(
        name="qwen2_5_vl_window",
        config=qwen2_5_vl(
            {},
            max_window_layers=1,
            rope_scaling=SECTIONS | YARN,
            sliding_window=8,
            use_sliding_window=True,
        ),
        tokens=21,
        published=flat_names,
        without={
            "window": {"use_sliding_window": False},
            "yarn": {"rope_scaling": SECTIONS | {"type": "mrope"}},
        },
    ),
    Case(name="qwen3_vl", config=qwen3_vl({})),
    Case(
        name="qwen3_vl_biases",  # 3 heads, tied
        config=qwen3_vl({}, attention_bias=True, num_attention_heads=3, num_key_value_heads=1)
        | {"tie_word_embeddings": True},
    ),
    Case(
        name="qwen3_vl_moe",
        config=qwen3_vl_moe({}, mlp_only_layers=[1]),
        stored=turned_experts,
    ),
    Case(
        name="qwen3_vl_moe_saved",  # by transformers, the matrices of experts as [out, in]
        config=qwen3_vl_moe({}, decoder_sparse_step=2),
    ),
    Case(name="qwen2_audio", config=qwen2_audio(encoder(), num_key_value_heads=1)),
]
