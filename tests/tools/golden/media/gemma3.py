"""Gemma 3 and PaliGemma with images, and Gemma 4 with images, videos and sounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.tools.golden.families.gemmas import published_tower
from tests.tools.golden.media.case import MediaCase, Reader, Seen, with_vision
from tests.tools.golden.media.pixtral import later
from tests.tools.golden.media.qwen import RATE
from tests.tools.golden.media.sounds import GEMMA_4, hear_4

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

IMAGE = 262  # of PaliGemma, behind the tokens of `tiny_folder`


def look(case: MediaCase, images: Sequence[np.ndarray]) -> Seen:
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    given = {key: value for key, value in case.preprocessor.items() if key != "image_seq_length"}
    process = SiglipImageProcessorPil.from_dict(given)
    pixels = process(list(images), return_tensors="pt")["pixel_values"]
    rows = [IMAGE] * case.preprocessor["image_seq_length"]
    return Seen([rows] * len(images), {"pixel_values": pixels}, [each.numpy() for each in pixels])


PALIGEMMA = Reader(look, answers=("token_type_ids", 12))

# Behind the tokens of `tiny_folder`: the beginning of an image, its tokens and its end; a video's.
IMAGES_4, VIDEO_4 = (266, 268, 267), 269


def perceive_4(case: MediaCase, media: Sequence[np.ndarray]) -> Seen:
    """Each medium is processed by itself. Times stand as three tokens of a text before frames."""
    import torch

    each = [_perceived(case, medium) for medium in media]
    inputs = dict[str, Any]()
    for found in each:
        both = {
            key: torch.cat([inputs[key], found.inputs[key]])
            for key in found.inputs
            if key in inputs
        }
        inputs |= {**found.inputs, **both}
    rows = [row for found in each for row in found.rows]
    return Seen(rows, inputs, [piece for found in each for piece in found.pieces])


def _perceived(case: MediaCase, medium: np.ndarray) -> Seen:
    if medium.ndim == 1:
        return hear_4(case, [medium])
    begin, soft, end = IMAGES_4
    if medium.ndim == 3:
        from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

        process = Gemma4ImageProcessorPil.from_dict(case.of("image_processor"))
        made = process([medium], return_tensors="pt")
        inputs = {key: made[key] for key in ("pixel_values", "image_position_ids")}
        rows = [begin, *[soft] * made["num_soft_tokens_per_image"][0], end]
        return Seen([rows], inputs, [_there(*inputs.values())])
    return _watched(case, medium)


def _watched(case: MediaCase, video: np.ndarray) -> Seen:
    import torch
    from transformers import Gemma4VideoProcessor

    made = Gemma4VideoProcessor.from_dict(case.of("video_processor"))(
        [torch.from_numpy(video).permute(0, 3, 1, 2)],
        video_metadata=[{"fps": RATE, "total_num_frames": len(video)}],
        return_tensors="pt",
    )
    names = ("pixel_values_videos", "video_position_ids", "num_frames_per_video")
    inputs = {key: torch.as_tensor(made[key]) for key in names}
    (begin, _, end), count = IMAGES_4, made["num_soft_tokens_per_video"][0]
    frame = [20, 30, begin, *[VIDEO_4] * count, end]
    rows = [token for n in range(int(inputs[names[2]])) for token in (10 + n, *frame)]
    return Seen([rows], inputs, [_there(*[inputs[key] for key in names[:2]])])


def _there(pixels: Any, positions: Any) -> np.ndarray:
    """f32[p, C]: patches without those that fill the budget, row by row."""
    return pixels[positions[..., 0] >= 0].numpy()


def vectors_4(model: Any, seen: Seen, prompt: Sequence[int]) -> Sequence[Any]:
    """Vectors of each medium, in the prompt's order."""
    given, found = seen.inputs, dict[int, list[Any]]()
    _, soft, _ = IMAGES_4
    if "pixel_values" in given:
        made = model.get_image_features(given["pixel_values"], given["image_position_ids"])
        found[soft] = list(made.pooler_output)
    if "pixel_values_videos" in given:
        names = ("pixel_values_videos", "video_position_ids", "num_frames_per_video")
        made = model.model.get_video_features(*[given[key] for key in names])
        found[VIDEO_4] = list(made.pooler_output)
    if "input_features" in given:
        made = model.model.get_audio_features(given["input_features"], given["input_features_mask"])
        heard = zip(made.pooler_output, made.attention_mask, strict=True)
        found[GEMMA_4[1]] = [each[there] for each, there in heard]
    return [next(found[token].pop(0) for token in row if token in found) for row in seen.rows]


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
    # Over Gemma, as the first are published. Images grow: all releases of Pillow do it alike.
    MediaCase(
        "paligemma",
        PALIGEMMA,
        images=((20, 20), (13, 9)),
        published=later,
        without={"GELU": {"vision_config.hidden_act": "relu"}},
    ),
    # Over Gemma 2, whose window the answer outgrows.
    MediaCase("paligemma_gemma2", PALIGEMMA, images=((11, 16),), published=published_tower),
    # As the smaller ones, in one prompt with a sound; one image is a row of squares. Of the video's
    # frames two are taken.
    MediaCase(
        "gemma4",
        Reader(perceive_4, vectors_4),
        images=((30, 41), (9, 300)),
        sounds=(9_113,),
        videos=((5, 28, 40),),
        order=("image_0", "sound_0", "video_0", "image_1"),
        without={
            "activation": {"vision_config.hidden_activation": "relu"},
            "axes": {"vision_config.rope_parameters": {"rope_theta": 2.0, "rope_type": "axial"}},
        },
    ),
    # As the larger ones: tokens of an image see each other in layers with a window.
    MediaCase(
        "gemma4_vision",
        Reader(perceive_4, vectors_4, kinds=("mm_token_type_ids", IMAGES_4[1])),
        images=((41, 67), (70, 20), (5, 600)),
        without={
            "activation": {"vision_config.hidden_activation": "relu"},
            "sight": {"text_config.use_bidirectional_attention": None},
        },
    ),
]
