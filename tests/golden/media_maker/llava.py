"""The grid of LLaVA with CLIP's tower."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.golden.families_maker.decoders import llama, qwen2
from tests.golden.media_maker.case import MediaCase, Seen
from tests.golden.media_maker.pixtral import SOFT, VOCAB, llava


def clip(**sizes: Any) -> dict[str, Any]:
    return {
        "hidden_size": 16,
        "image_size": 20,
        "intermediate_size": 24,
        "model_type": "clip_vision_model",
        "num_attention_heads": 2,
        "num_hidden_layers": 3,
        "patch_size": 5,
        "projection_dim": 12,
        "vocab_size": 97,
    } | sizes


def preprocessor(size: int, shortest: int, **own: Any) -> dict[str, Any]:
    """As published."""
    return {
        "crop_size": {"height": size, "width": size},
        "do_center_crop": True,
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_processor_type": "CLIPImageProcessor",
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "resample": 3,
        "rescale_factor": 0.00392156862745098,
        "size": {"shortest_edge": shortest},
    } | own


def see(case: MediaCase, images: Sequence[np.ndarray]) -> Seen:
    """Text, image, text, image, ..., text."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    process = CLIPImageProcessorPil.from_dict(case.preprocessor)
    pixels = process(list(images), return_tensors="pt")["pixel_values"]
    tower = case.config["vision_config"]
    prompt = [1, *case.words(0, 5)]
    for number in range(len(images)):
        rows = (tower["image_size"] // tower["patch_size"]) ** 2
        prompt += [*[SOFT] * rows, *case.words(1 + number, 1 + 3 * number)]
    return Seen(prompt, {"pixel_values": pixels}, [each.numpy() for each in pixels])


def vectors(model: Any, seen: Seen) -> Sequence[Any]:
    return list(model.get_image_features(**seen.inputs).pooler_output)


SETTINGS = {"vision_feature_layer": -2, "vision_feature_select_strategy": "default"}

CASES = [
    MediaCase(
        name="llava",
        config=llava(llama(vocab_size=VOCAB), clip(), **SETTINGS),
        preprocessor=preprocessor(20, 20),
        images=((31, 54), (20, 20)),
        see=see,
        vectors=vectors,
        without={
            "layer": {"vision_feature_layer": -1},
            "activation": {"vision_config": clip(hidden_act="relu")},
        },
    ),
    MediaCase(
        name="llava_layers",  # what several layers give is joined
        config=llava(
            qwen2(vocab_size=VOCAB), clip(num_attention_heads=4, layer_norm_eps=1e-3), **SETTINGS
        )
        | {"vision_feature_layer": [1, -1], "multimodal_projector_bias": False},
        preprocessor=preprocessor(20, 24, resample=2),
        images=((24, 60),),
        see=see,
        vectors=vectors,
    ),
]
