"""Gemma 3 with images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.tools.golden.families.gemmas import published_tower
from tests.tools.golden.media.case import MediaCase, Reader, Seen, with_vision
from tests.tools.golden.media.pixtral import later

START, END, SOFT = 262, 263, 264  # behind the tokens of `tiny_folder`


def gemma3_config(vision: dict[str, Any], **outer: Any) -> dict[str, Any]:
    """As the 4B is published: most of a SigLIP's keys, and hardly any of the text model's."""
    return with_vision("gemma3", vision, **outer)


def preprocessor(size: int, **own: Any) -> dict[str, Any]:
    """As published, with its nulls."""
    return CASES[0].preprocessor | {"size": {"height": size, "width": size}} | own


def see(case: MediaCase, images: Sequence[np.ndarray]) -> Seen:
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    process = Gemma3ImageProcessorPil.from_dict(case.preprocessor)
    pixels = process(list(images), return_tensors="pt")["pixel_values"]
    rows = [START, *[SOFT] * case.config["mm_tokens_per_image"], END]
    return Seen([rows] * len(images), {"pixel_values": pixels}, [each.numpy() for each in pixels])


GEMMA3 = Reader(see, first=(2,), growth=4, kinds=("token_type_ids", SOFT))

CASES = [
    # 4 pieces a side, and pixels at the edges that fill none. No image is taller than wide: Pillow
    # 12 and 13 round those differently, by one in a byte.
    MediaCase(
        "gemma3",
        GEMMA3,
        images=((41, 67), (33, 90)),
        published=published_tower,
        without={"GELU": {"vision_config.hidden_act": "relu"}},
    ),
    # 5 pieces a side, of which the last are in no vector; 2 heads.
    MediaCase("gemma3_odd", GEMMA3, images=((35, 35), (20, 50)), published=later),
    # One vector an image.
    MediaCase("gemma3_one", GEMMA3, images=((64, 64), (7, 9), (21, 40)), published=published_tower),
]
