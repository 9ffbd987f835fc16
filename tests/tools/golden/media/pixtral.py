"""Mistral 3, and LLaVA with Pixtral's tower."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.tools.golden.media.case import MediaCase, Reader, Seen

SOFT, BREAK, END = 262, 263, 264  # behind the tokens of `tiny_folder`


def later(name: str) -> str:
    """As transformers 5 holds a model with image input in memory: all of it is below `model.`."""
    parts = {
        "language_model.model.": "model.language_model.",
        "language_model.lm_head.": "lm_head.",
    }
    parts |= {part: f"model.{part}" for part in ("vision_tower.", "multi_modal_projector.")}
    found = next((part for part in parts if name.startswith(part)), "")
    return parts.get(found, "") + name.removeprefix(found)


def see(case: MediaCase, images: Sequence[np.ndarray]) -> Seen:
    import torch
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    config = case.config
    # Pixels of a side of a vector.
    side = config["vision_config"]["patch_size"] * config.get("spatial_merge_size", 1)
    process = PixtralImageProcessorPil.from_dict(case.preprocessor)
    made = process(list(images), return_tensors="pt", patch_size={"height": side, "width": side})
    sizes = [tuple(map(int, size)) for size in made["image_sizes"]]
    lines = [[*[SOFT] * (width // side), BREAK] for _, width in sizes]
    rows = [
        [*(line * (height // side))[:-1], END]
        for line, (height, _) in zip(lines, sizes, strict=True)
    ]
    inputs = {"pixel_values": made["pixel_values"], "image_sizes": torch.tensor(sizes)}
    pixels = zip(made["pixel_values"], sizes, strict=True)
    return Seen(rows, inputs, [each[:, :h, :w].numpy() for each, (h, w) in pixels])


PIXTRAL = Reader(see)

CASES = [
    # No image that is resized is taller than wide: Pillow 12 and 13 round those differently.
    MediaCase(
        "mistral3",
        PIXTRAL,
        images=((30, 41), (40, 8), (60, 100), (7, 9)),
        without={
            "theta": {"vision_config.rope_theta": 100.0},
            "gate": {"vision_config.hidden_act": "gelu"},
        },
    ),
    # One patch a vector, and biases.
    MediaCase(
        "mistral3_ministral3", PIXTRAL, images=((25, 10), (20, 70), (10, 10)), published=later
    ),
    # Mistral's own names, and queries and keys of the tower as it stores them.
    MediaCase(
        "mistral_large4",
        PIXTRAL,
        images=((30, 41), (40, 8)),
        without={"theta": {"vision_config.rope_parameters.rope_theta": 100.0}},
    ),
    MediaCase(
        "llava_pixtral",
        PIXTRAL,
        images=((16, 12), (40, 64)),
        without={"projector": {"projector_hidden_act": "relu"}},
    ),
]
