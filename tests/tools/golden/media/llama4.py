"""Llama 4 with images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.tools.golden.media.case import MediaCase, Reader, Seen

# Behind the tokens of `tiny_folder`.
START, END, IMAGE, SOFT, BESIDE, BELOW = range(262, 268)


def see(case: MediaCase, images: Sequence[np.ndarray]) -> Seen:
    import torch
    from transformers.models.llama4.image_processing_llama4 import Llama4ImageProcessor

    process = Llama4ImageProcessor.from_dict(case.preprocessor)
    vision, rows, pieces = case.config["vision_config"], [], []
    side = vision["image_size"] // vision["patch_size"] * vision["pixel_shuffle_ratio"]
    tile = [SOFT] * int(side**2)
    for image in images:
        made = process(torch.from_numpy(image).permute(2, 0, 1), return_tensors="pt")
        pieces.append(made["pixel_values"].float())
        high, wide = made["aspect_ratios"][0].tolist()
        line = [*([*tile, BESIDE] * wide)[:-1], BELOW]
        tiles = line * high if high * wide > 1 else []
        rows.append([START, *tiles, IMAGE, *tile, END])
    return Seen(rows, {"pixel_values": torch.cat(pieces)}, [each.numpy() for each in pieces])


def vectors(model: Any, seen: Seen, prompt: Sequence[int]) -> Sequence[Any]:
    model.language_model.register_forward_hook(_add_image_outputs)
    made = model.get_image_features(**seen.inputs).last_hidden_state
    rows = model.multi_modal_projector(made)
    return [each.flatten(0, 1) for each in rows.split([len(each) for each in seen.pieces])]


def _add_image_outputs(text_model: Any, inputs: Any, output: Any) -> None:
    """Give the text model's output a field that transformers 5.24 copies without having set it."""
    if not hasattr(output, "image_outputs"):
        output.image_outputs = None


LLAMA4 = Reader(see, vectors)

# Images are as large as a grid of tiles, where torchvision and Pillow scale them alike but for the
# whole image below them; their bytes then differ by one at most.
CASES = [
    MediaCase(
        "llama4",
        LLAMA4,
        images=((16, 16), (32, 48), (48, 16)),
        without={"theta": {"vision_config.rope_theta": 100.0}},
    ),
    # 3 by 3 patches make a vector; at most 4 tiles.
    MediaCase("llama4_few", LLAMA4, images=((18, 18), (18, 72), (36, 36))),
]
