"""Qwen's models with images: Qwen2-VL, Qwen2.5-VL, Qwen3-VL and its experts, Qwen3.5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.tools.golden import common
from tests.tools.golden.common import Shapes
from tests.tools.golden.families.recurrent import experts_together
from tests.tools.golden.media.case import FOLDER, MediaCase, Reader, Seen, with_vision

START, END, TOKEN = 264, 265, 266  # behind the tokens of `tiny_folder`


def qwen2_vl(vision: dict[str, Any]) -> dict[str, Any]:
    """As published: the keys of both parts beside each other."""
    return with_vision("qwen2_vl", vision)


def qwen2_5_vl(vision: dict[str, Any]) -> dict[str, Any]:
    """As published: the keys of both parts beside each other."""
    return with_vision("qwen2_5_vl", vision)


def qwen3_vl(vision: dict[str, Any]) -> dict[str, Any]:
    """As published: each part apart."""
    return with_vision("qwen3_vl", vision)


def preprocessor(**own: Any) -> dict[str, Any]:
    """As Qwen2.5-VL is published."""
    return common.read_json(FOLDER / "qwen2_5_vl" / "preprocessor_config.json") | own


def later_preprocessor(**own: Any) -> dict[str, Any]:
    """As Qwen3-VL is published."""
    return common.read_json(FOLDER / "qwen3_vl" / "preprocessor_config.json") | own


def see(case: MediaCase, images: Sequence[np.ndarray]) -> Seen:
    import torch
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    given = {k: v for k, v in case.preprocessor.items() if k != "image_processor_type"}
    process = Qwen2VLImageProcessorPil.from_dict(given)
    each = [process([image], return_tensors="pt") for image in images]
    grids = torch.cat([one["image_grid_thw"] for one in each])
    counts = (grids.prod(-1) // process.merge_size**2).tolist()
    rows = [[START, *[TOKEN] * count, END] for count in counts]
    pixels = [one["pixel_values"] for one in each]
    inputs = {"pixel_values": torch.cat(pixels), "image_grid_thw": grids}
    return Seen(rows, inputs, [one.numpy() for one in pixels])


def vectors(model: Any, seen: Seen, prompt: Sequence[int]) -> Sequence[Any]:
    """Vectors of each image: those of the first layer's input, then those of each level."""
    import torch

    found = model.get_image_features(**seen.inputs)
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


QWEN = Reader(see, vectors, first=(), growth=4, kinds=("mm_token_type_ids", TOKEN))
THREE = ((37, 61), (16, 24), (90, 20))

CASES = [
    MediaCase(
        "qwen2_vl",
        QWEN,
        images=THREE,
        published=flat_names,
        without={
            "sections": {"rope_scaling.mrope_section": [3, 2, 1]},
            "quick GELU": {"vision_config.hidden_act": "relu"},
        },
    ),
    # Windows of 4 vectors, some cut at the edges.
    MediaCase(
        "qwen2_5_vl",
        QWEN,
        images=THREE,
        published=flat_names,
        without={
            "windows": {"vision_config.fullatt_block_indexes": [0, 1, 2]},
            "sections": {"rope_scaling.mrope_section": [3, 2, 1]},
        },
    ),
    # Windows of 9 vectors, 5 heads, tied, one key-value head.
    MediaCase(
        "qwen2_5_vl_wide",
        QWEN,
        images=((30, 50), (6, 8), (12, 80), (24, 24)),
        published=flat_names,
    ),
    MediaCase(
        "qwen3_vl",
        QWEN,
        images=THREE,
        without={
            "levels": {"vision_config.deepstack_visual_indexes": [1, 2]},
            "sections": {"text_config.rope_scaling": {"mrope_section": [5, 0, 0]}},
        },
    ),
    # Squares of 9 patches, 2 heads, one level, tied.
    MediaCase("qwen3_vl_three", QWEN, images=((30, 44), (6, 6), (9, 60))),
    MediaCase(
        "qwen3_vl_moe",
        QWEN,
        images=THREE[:2],
        stored=turned_experts,
        without={
            "levels": {"vision_config.deepstack_visual_indexes": [1, 2]},
            "experts": {"text_config.num_experts_per_tok": 1},
        },
    ),
    # As transformers saves it, the matrices of experts as [out, in].
    MediaCase("qwen3_vl_moe_saved", QWEN, images=((20, 20),)),
    MediaCase(
        "qwen3_5",
        QWEN,
        images=THREE[:2],
        without={"sections": {"text_config.rope_parameters.mrope_section": [6, 0, 0]}},
    ),
    MediaCase("qwen3_5_moe", QWEN, images=((30, 50),), stored=experts_together),
]
