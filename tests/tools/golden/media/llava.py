"""LLaVA with CLIP's tower."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.tools.golden.media.case import MediaCase, Reader, Seen
from tests.tools.golden.media.pixtral import SOFT


def see(case: MediaCase, images: Sequence[np.ndarray]) -> Seen:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    process = CLIPImageProcessorPil.from_dict(case.preprocessor)
    pixels = process(list(images), return_tensors="pt")["pixel_values"]
    tower = case.config["vision_config"]
    rows = [SOFT] * (tower["image_size"] // tower["patch_size"]) ** 2
    return Seen([rows] * len(images), {"pixel_values": pixels}, [each.numpy() for each in pixels])


CLIP = Reader(see)

CASES = [
    MediaCase(
        "llava",
        CLIP,
        images=((31, 54), (20, 20)),
        without={
            "layer": {"vision_feature_layer": -1},
            "activation": {"vision_config.hidden_act": "relu"},
        },
    ),
    MediaCase("llava_layers", CLIP, images=((24, 60),)),  # what several layers give is joined
]
