"""The grid of Gemma 3 with images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.golden.families_maker.gemmas import gemma3, published_tower
from tests.golden.media_maker.case import MediaCase, Seen

VOCAB = 267  # the tokens of `tiny_folder`, those of an image, and two rows more
START, END, SOFT = 262, 263, 264


def gemma3_config(vision: dict[str, Any], **outer: Any) -> dict[str, Any]:
    """As the 4B is published: most of a SigLIP's keys, and hardly any of the text model's."""
    text = gemma3(
        vocab_size=VOCAB, num_hidden_layers=6, rope_scaling={"factor": 8.0, "rope_type": "linear"}
    )
    usual = ("rope_theta", "rope_local_base_freq", "sliding_window_pattern", "tie_word_embeddings")
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "boi_token_index": START,
        "eoi_token_index": END,
        "eos_token_id": [1, 2],
        "image_token_index": SOFT,
        "initializer_range": 0.02,
        "mm_tokens_per_image": 4,
        "model_type": "gemma3",
        "text_config": {key: value for key, value in text.items() if key not in usual},
        "torch_dtype": "bfloat16",
        "transformers_version": "4.50.0.dev0",
        "vision_config": {
            "hidden_size": 24,
            "intermediate_size": 40,
            "model_type": "siglip_vision_model",
            "num_attention_heads": 3,
            "num_hidden_layers": 2,
            "patch_size": 7,
            "vision_use_head": False,
        }
        | vision,
    } | outer


def preprocessor(size: int, **own: Any) -> dict[str, Any]:
    """As published, with its nulls."""
    return {
        "do_convert_rgb": None,
        "do_normalize": True,
        "do_pan_and_scan": None,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "Gemma3ImageProcessor",
        "image_std": [0.5, 0.5, 0.5],
        "pan_and_scan_max_num_crops": None,
        "pan_and_scan_min_crop_size": None,
        "pan_and_scan_min_ratio_to_activate": None,
        "processor_class": "Gemma3Processor",
        "resample": 2,
        "rescale_factor": 0.00392156862745098,
        "size": {"height": size, "width": size},
    } | own


def see(case: MediaCase, images: Sequence[np.ndarray]) -> Seen:
    """Text, image, a token between them, image, text."""
    import torch
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    process = Gemma3ImageProcessorPil.from_dict(case.preprocessor)
    pixels = process(list(images), return_tensors="pt")["pixel_values"]
    rows = case.config["mm_tokens_per_image"]
    prompt = [2, *case.words(0, 5)]
    for number in range(len(images)):
        prompt += [START, *[SOFT] * rows, END, *case.words(1 + number, 1 + 4 * number)]
    kinds = torch.tensor([[int(token == SOFT) for token in prompt]])
    inputs = {"pixel_values": pixels, "token_type_ids": kinds}
    return Seen(prompt, inputs, [each.numpy() for each in pixels])


def vectors(model: Any, seen: Seen) -> Sequence[Any]:
    return list(model.get_image_features(seen.inputs["pixel_values"]).pooler_output)


def later(name: str) -> str:
    """As transformers 5 holds a model with image input in memory: all of it is below `model.`."""
    parts = {"language_model.model.": "model.language_model."}
    parts |= {part: f"model.{part}" for part in ("vision_tower.", "multi_modal_projector.")}
    found = next((part for part in parts if name.startswith(part)), "")
    return parts.get(found, "") + name.removeprefix(found)


CASES = [
    MediaCase(
        name="gemma3",  # 4 pieces a side, and pixels at the edges that fill none
        config=gemma3_config({"image_size": 30}),
        preprocessor=preprocessor(30),
        # None taller than wide: Pillow 12 and 13 round those differently, by one in a byte.
        images=((41, 67), (33, 90)),
        see=see,
        vectors=vectors,
        published=published_tower,
        without={
            "GELU": {
                "vision_config": gemma3_config({"image_size": 30})["vision_config"]
                | {"hidden_act": "relu"}
            }
        },
    ),
    MediaCase(
        name="gemma3_odd",  # 5 pieces a side, of which the last are in no vector; 2 heads
        config=gemma3_config(
            {
                "image_size": 35,
                "num_attention_heads": 2,
                "layer_norm_eps": 1e-5,
                "hidden_act": "gelu",
            }
        ),
        preprocessor=preprocessor(
            35, resample=3, image_mean=[0.4, 0.5, 0.6], image_std=[0.3, 0.2, 0.25]
        ),
        images=((35, 35), (20, 50)),
        see=see,
        vectors=vectors,
        published=later,
    ),
    MediaCase(
        name="gemma3_one",  # one vector an image
        config=gemma3_config({"image_size": 21}, mm_tokens_per_image=1),
        preprocessor=preprocessor(21, image_seq_length=1),
        images=((64, 64), (7, 9), (21, 40)),
        see=see,
        vectors=vectors,
        published=published_tower,
    ),
]
