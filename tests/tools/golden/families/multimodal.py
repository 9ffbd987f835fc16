"""Models with image or audio input, for prompts of text; see kind `media` too."""

from __future__ import annotations

from tests.tools.golden.families.case import Case
from tests.tools.golden.media.qwen import turned_experts

_KIMI_LAYERS = "language_model.model.layers."

CASES = [
    Case("qwen2_vl", without={"theta": {"rope_theta": 10000.0}}),
    Case("qwen2_5_vl", without={"theta": {"rope_theta": 10000.0}}),
    Case(
        "qwen2_5_vl_window",
        tokens=21,
        without={
            "window": {"use_sliding_window": False},
            "yarn": {"rope_scaling": {"mrope_section": [1, 2, 3], "type": "mrope"}},
        },
    ),
    Case("qwen3_vl"),
    Case("qwen3_vl_biases"),  # 3 heads, tied
    # As published, and as transformers saves it: the matrices of experts as [out, in].
    Case("qwen3_vl_moe", stored=turned_experts),
    Case("qwen3_vl_moe_saved"),
    # The part that answers alone, as transformers saves it.
    Case("qwen2_5_omni", without={"theta": {"text_config.rope_theta": 10000.0}}),
    Case("qwen3_omni_moe", without={"experts": {"text_config.num_experts_per_tok": 1}}),
    Case("qwen2_audio"),
    Case("voxtral", without={"theta": {"text_config.rope_theta": 10000.0}}),
    Case("phi4_multimodal", without={"part": {"partial_rotary_factor": 0.5, "rope_scaling": None}}),
    Case("granite_speech", without={"theta": {"text_config.rope_theta": 10000.0}}),
    Case("llava_with_mistral", tokens=21),
    Case(
        "kimi_k25",
        without={"scaling": {"text_config.routed_scaling_factor": 1.0}},
        # transformers 5.24 saves the text model's layers by the name of the tower's.
        published=lambda name: name.replace("language_model.model.blocks.", _KIMI_LAYERS),
    ),
    # Layers that take an earlier one's latents, of its kind, with an indexer of their own or not.
    Case(
        "mistral_large4",
        without={
            "choice": {"text_config.index_topk": 64},
            "another count": {"text_config.index_topk": 9},
            "cap": {"text_config.final_logit_softcapping": 30.0},
            "yarn": {"text_config.rope_parameters.factor": 1.0},
            "scaling": {"text_config.routed_scaling_factor": 1.0},
        },
    ),
    # Every layer its own; biases, another rope, tied, and layers by their numbers.
    Case(
        "mistral_large4_own",
        without={"choice": {"text_config.index_topk": 64}},
    ),
    Case(
        "exaone4_with_images",
        tokens=21,
        without={"window": {"text_config.sliding_window": 64}},
    ),
]
