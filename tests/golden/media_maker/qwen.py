"""The grid of Qwen's models with images: Qwen2-VL, Qwen2.5-VL, Qwen3-VL and its experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.golden.families_maker import recurrent
from tests.golden.families_maker.recurrent import experts_together
from tests.golden.media_maker.case import MediaCase, Seen, Shapes

START, END, TOKEN, VIDEO = 264, 265, 266, 267  # tokens, behind those of tiny_folder


def language(**sizes: Any) -> dict[str, Any]:
    """Keys of the text model, with the sections of a head of 12."""
    return {
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
        "rope_theta": 1000000.0,
        "use_cache": True,
        "vocab_size": 270,
    } | sizes


def outer(architecture: str, model_type: str) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "image_token_id": TOKEN,
        "model_type": model_type,
        "tie_word_embeddings": False,
        "transformers_version": "4.57.0",
        "video_token_id": VIDEO,
        "vision_end_token_id": END,
        "vision_start_token_id": START,
    }


def qwen2_vl(vision: dict[str, Any], **sizes: Any) -> dict[str, Any]:
    """As published: the keys of both parts beside each other."""
    own = {
        "max_window_layers": 28,
        "rope_scaling": {"mrope_section": [1, 2, 3], "type": "mrope"},
        "sliding_window": 32768,
        "torch_dtype": "bfloat16",
        "use_sliding_window": False,
        "vision_token_id": 268,
    }
    tower = {
        "depth": 2,
        "embed_dim": 24,
        "hidden_size": 48,
        "in_chans": 3,
        "mlp_ratio": 2,
        "num_heads": 3,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "spatial_patch_size": 4,
        "temporal_patch_size": 2,
    }
    known = outer("Qwen2VLForConditionalGeneration", "qwen2_vl")
    return {**known, **language(**own), "vision_config": tower | vision, **sizes}


def qwen2_5_vl(vision: dict[str, Any], **sizes: Any) -> dict[str, Any]:
    """As published: the keys of both parts beside each other."""
    tower = {
        "depth": 3,
        "fullatt_block_indexes": [1],
        "hidden_act": "silu",
        "hidden_size": 24,
        "in_chans": 3,
        "intermediate_size": 20,
        "num_heads": 3,
        "out_hidden_size": 48,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "spatial_patch_size": 4,
        "temporal_patch_size": 2,
        "tokens_per_second": 2,
        "window_size": 16,
    }
    known = outer("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl")
    return {**qwen2_vl({}), **known, "vision_config": tower | vision, **sizes}


def qwen3_vl(vision: dict[str, Any], **sizes: Any) -> dict[str, Any]:
    """As published: each part apart."""
    rope = {"mrope_interleaved": True, "mrope_section": [2, 2, 1], "rope_type": "default"}
    text = language(
        attention_bias=False,
        head_dim=10,
        dtype="bfloat16",
        model_type="qwen3_vl_text",
        num_hidden_layers=3,
        rope_scaling=rope,
        rope_theta=5000000,
    )
    tower = {
        "deepstack_visual_indexes": [0, 2],
        "depth": 3,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 24,
        "in_channels": 3,
        "initializer_range": 0.02,
        "intermediate_size": 36,
        "model_type": "qwen3_vl",
        "num_heads": 3,
        "num_position_embeddings": 36,
        "out_hidden_size": 48,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    known = outer("Qwen3VLForConditionalGeneration", "qwen3_vl")
    return {**known, "text_config": text | sizes, "vision_config": tower | vision}


def qwen3_vl_moe(vision: dict[str, Any], **sizes: Any) -> dict[str, Any]:
    whole = qwen3_vl({"model_type": "qwen3_vl_moe"} | vision)
    own = {
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "model_type": "qwen3_vl_moe_text",
        "moe_intermediate_size": 20,
        "norm_topk_prob": True,
        "num_experts": 6,
        "num_experts_per_tok": 2,
    }
    known = outer("Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe")
    return {**whole, **known, "text_config": whole["text_config"] | own | sizes}


def qwen3_5_text(sections: Sequence[int] = (2, 2, 2)) -> dict[str, Any]:
    text = recurrent.qwen3_5(head_dim=24, vocab_size=270)
    return text | {
        "rope_parameters": text["rope_parameters"]
        | {"mrope_section": list(sections), "partial_rotary_factor": 0.5, "rope_theta": 1000.0}
    }


def qwen3_5_moe_text() -> dict[str, Any]:
    rope = {"rope_parameters": qwen3_5_text()["rope_parameters"]}
    return recurrent.qwen3_5_moe(head_dim=24, vocab_size=270) | rope


def qwen3_5(
    text: dict[str, Any],
    architecture: str = "Qwen3_5ForConditionalGeneration",
    model_type: str = "qwen3_5",
) -> dict[str, Any]:
    """As published: the tower of Qwen3-VL, without levels."""
    tower = qwen3_vl({"deepstack_visual_indexes": [], "model_type": model_type})["vision_config"]
    inner = {key: value for key, value in text.items() if key != "architectures"}
    return outer(architecture, model_type) | {"text_config": inner, "vision_config": tower}


def preprocessor(**own: Any) -> dict[str, Any]:
    """As Qwen2.5-VL is published."""
    return {
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_processor_type": "Qwen2VLImageProcessor",
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "max_pixels": 1920,
        "merge_size": 2,
        "min_pixels": 256,
        "patch_size": 4,
        "processor_class": "Qwen2_5_VLProcessor",
        "temporal_patch_size": 2,
    } | own


def later_preprocessor(**own: Any) -> dict[str, Any]:
    """As Qwen3-VL is published."""
    return {
        "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "image_std": [0.5, 0.5, 0.5],
        "merge_size": 2,
        "patch_size": 4,
        "processor_class": "Qwen3VLProcessor",
        "size": {"longest_edge": 1920, "shortest_edge": 256},
        "temporal_patch_size": 2,
    } | own


def see(case: MediaCase, images: Sequence[np.ndarray]) -> Seen:
    """Text, image, text between them, image, text."""
    import torch
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    given = {k: v for k, v in case.preprocessor.items() if k != "image_processor_type"}
    process = Qwen2VLImageProcessorPil.from_dict(given)
    each = [process([image], return_tensors="pt") for image in images]
    grids = torch.cat([one["image_grid_thw"] for one in each])
    prompt = case.words(0, 5)
    for number, grid in enumerate(grids.tolist()):
        rows = grid[0] * grid[1] * grid[2] // process.merge_size**2
        prompt += [START, *[TOKEN] * rows, END, *case.words(1 + number, 1 + 4 * number)]
    inputs = {
        "pixel_values": torch.cat([one["pixel_values"] for one in each]),
        "image_grid_thw": grids,
        "mm_token_type_ids": torch.tensor([[int(token == TOKEN) for token in prompt]]),
    }
    return Seen(prompt, inputs, [one["pixel_values"].numpy() for one in each])


def vectors(model: Any, seen: Seen) -> Sequence[Any]:
    """Vectors of each image: those of the first layer's input, then those of each level."""
    import torch

    found = model.get_image_features(seen.inputs["pixel_values"], seen.inputs["image_grid_thw"])
    levels = getattr(found, "deepstack_features", None) or []
    return [torch.cat(parts, dim=1) for parts in zip(found.pooler_output, *levels, strict=True)]


def flat_names(name: str) -> str:
    """As published with Qwen2-VL: the text model without a prefix, the tower beside it."""
    return name.replace("model.language_model.", "model.").replace("model.visual.", "visual.")


def turned_experts(shapes: Shapes) -> Shapes:
    """As published: the matrices of all experts as [in, out]."""
    both = (".experts.gate_up_proj", ".experts.down_proj")
    return {
        name: (shape[0], shape[2], shape[1]) if name.endswith(both) else shape
        for name, shape in shapes.items()
    }


def of_vision(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"vision_config": config["vision_config"] | changes}


def of_text(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"text_config": config["text_config"] | changes}


CASES = [
    MediaCase(
        name="qwen2_vl",
        config=qwen2_vl({}),
        preprocessor=preprocessor(processor_class="Qwen2VLProcessor"),
        images=((37, 61), (16, 24), (90, 20)),
        see=see,
        vectors=vectors,
        published=flat_names,
        without={
            "sections": {"rope_scaling": {"mrope_section": [3, 2, 1], "type": "mrope"}},
            "quick GELU": of_vision(qwen2_vl({}), hidden_act="relu"),
        },
    ),
    MediaCase(
        name="qwen2_5_vl",  # windows of 4 vectors, some cut at the edges
        config=qwen2_5_vl({}),
        preprocessor=preprocessor(),
        images=((37, 61), (16, 24), (90, 20)),
        see=see,
        vectors=vectors,
        published=flat_names,
        without={
            "windows": of_vision(qwen2_5_vl({}), fullatt_block_indexes=[0, 1, 2]),
            "sections": {"rope_scaling": {"mrope_section": [3, 2, 1], "type": "mrope"}},
        },
    ),
    MediaCase(
        name="qwen2_5_vl_wide",  # windows of 9 vectors, 5 heads, tied, one key-value head
        config=qwen2_5_vl(
            {
                "fullatt_block_indexes": [0],
                "hidden_size": 20,
                "num_heads": 5,
                "patch_size": 3,
                "spatial_patch_size": 3,
                "window_size": 20,
            },
            num_key_value_heads=1,
            tie_word_embeddings=True,
        ),
        preprocessor=preprocessor(patch_size=3, min_pixels=36, max_pixels=1500),
        images=((30, 50), (6, 8), (12, 80), (24, 24)),
        see=see,
        vectors=vectors,
        published=flat_names,
    ),
    MediaCase(
        name="qwen3_vl",
        config=qwen3_vl({}),
        preprocessor=later_preprocessor(),
        images=((37, 61), (16, 24), (90, 20)),
        see=see,
        vectors=vectors,
        without={
            "levels": of_vision(qwen3_vl({}), deepstack_visual_indexes=[1, 2]),
            "sections": of_text(qwen3_vl({}), rope_scaling={"mrope_section": [5, 0, 0]}),
        },
    ),
    MediaCase(
        name="qwen3_vl_three",  # squares of 9 patches, 2 heads, one level, tied
        config={
            **qwen3_vl(
                {
                    "deepstack_visual_indexes": [1],
                    "num_heads": 2,
                    "num_position_embeddings": 49,
                    "patch_size": 2,
                    "spatial_merge_size": 3,
                },
                num_attention_heads=3,
                num_key_value_heads=1,
            ),
            "tie_word_embeddings": True,
        },
        preprocessor=later_preprocessor(
            patch_size=2, merge_size=3, size={"longest_edge": 1500, "shortest_edge": 36}
        ),
        images=((30, 44), (6, 6), (9, 60)),
        see=see,
        vectors=vectors,
    ),
    MediaCase(
        name="qwen3_vl_moe",
        config=qwen3_vl_moe({}, mlp_only_layers=[1]),
        preprocessor=later_preprocessor(),
        images=((37, 61), (16, 24)),
        see=see,
        vectors=vectors,
        stored=turned_experts,
        without={
            "levels": of_vision(qwen3_vl_moe({}), deepstack_visual_indexes=[1, 2]),
            "experts": of_text(qwen3_vl_moe({}), mlp_only_layers=[1], num_experts_per_tok=1),
        },
    ),
    MediaCase(
        name="qwen3_vl_moe_saved",  # by transformers, the matrices of experts as [out, in]
        config=qwen3_vl_moe({"deepstack_visual_indexes": []}, decoder_sparse_step=2),
        preprocessor=later_preprocessor(),
        images=((20, 20),),
        see=see,
        vectors=vectors,
    ),
    MediaCase(
        name="qwen3_5",
        config=qwen3_5(qwen3_5_text()),
        preprocessor=later_preprocessor(),
        images=((37, 61), (16, 24)),
        see=see,
        vectors=vectors,
        without={"sections": {"text_config": qwen3_5_text([6, 0, 0])}},
    ),
    MediaCase(
        name="qwen3_5_moe",
        config=qwen3_5(qwen3_5_moe_text(), "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe"),
        preprocessor=later_preprocessor(),
        images=((30, 50),),
        see=see,
        vectors=vectors,
        stored=experts_together,
    ),
]
