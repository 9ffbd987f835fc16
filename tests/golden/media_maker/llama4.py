"""The grid of Llama 4 with images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.golden.families_maker.expert_families import llama4
from tests.golden.media_maker.case import MediaCase, Seen

VOCAB = 270  # the tokens of `tiny_folder`, those of an image, and two rows more
START, END, IMAGE, SOFT, BESIDE, BELOW = range(262, 268)


def llama4_config(vision: dict[str, Any], **text: Any) -> dict[str, Any]:
    own = llama4(head_dim=8, vocab_size=VOCAB, **text)
    return {
        "architectures": ["Llama4ForConditionalGeneration"],
        "boi_token_index": START,
        "eoi_token_index": END,
        "image_token_index": SOFT,
        "model_type": "llama4",
        "text_config": {key: value for key, value in own.items() if key != "architectures"},
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0.dev0",
        "vision_config": {
            "attention_dropout": 0.0,
            "hidden_act": "gelu",
            "hidden_size": 16,
            "image_size": 16,
            "initializer_range": 0.02,
            "intermediate_size": 64,
            "model_type": "llama4_vision_model",
            "multi_modal_projector_bias": False,
            "norm_eps": 1e-05,
            "num_attention_heads": 2,
            "num_channels": 3,
            "num_hidden_layers": 2,
            "patch_size": 4,
            "pixel_shuffle_ratio": 0.5,
            "projector_dropout": 0.0,
            "projector_input_dim": 24,
            "projector_output_dim": 24,
            "rope_theta": 10000,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "default",
            "vision_output_dim": 24,
        }
        | vision,
    }


def preprocessor(size: int, **own: Any) -> dict[str, Any]:
    """As published, with its nulls."""
    return {
        "crop_size": None,
        "data_format": "channels_first",
        "default_to_square": True,
        "device": None,
        "do_center_crop": None,
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "Llama4ImageProcessorFast",
        "image_std": [0.5, 0.5, 0.5],
        "input_data_format": None,
        "max_patches": 16,
        "processor_class": "Llama4Processor",
        "resample": 2,
        "rescale_factor": 0.00392156862745098,
        "resize_to_max_canvas": False,
        "return_tensors": None,
        "size": {"height": size, "width": size},
    } | own


def rows_of(case: MediaCase) -> int:
    """Vectors of a tile."""
    vision = case.config["vision_config"]
    return int((vision["image_size"] // vision["patch_size"] * vision["pixel_shuffle_ratio"]) ** 2)


def see(case: MediaCase, images: Sequence[np.ndarray]) -> Seen:
    """Text, image, text, image, ..., text."""
    import torch
    from transformers.models.llama4.image_processing_llama4 import Llama4ImageProcessor

    process = Llama4ImageProcessor.from_dict(case.preprocessor)
    prompt, pieces, rows = [1, *case.words(0, 5)], [], rows_of(case)
    for number, image in enumerate(images):
        made = process(torch.from_numpy(image).permute(2, 0, 1), return_tensors="pt")
        pieces.append(made["pixel_values"].float())
        high, wide = made["aspect_ratios"][0].tolist()
        tile = [SOFT] * rows
        line = [*([*tile, BESIDE] * wide)[:-1], BELOW]
        tiles = line * high if high * wide > 1 else []
        prompt += [START, *tiles, IMAGE, *tile, END, *case.words(1 + number, 1 + 3 * number)]
    inputs = {"pixel_values": torch.cat(pieces)}
    return Seen(prompt, inputs, [each.numpy() for each in pieces])


def vectors(model: Any, seen: Seen) -> Sequence[Any]:
    made = model.get_image_features(**seen.inputs).last_hidden_state
    rows = model.multi_modal_projector(made)
    return [each.flatten(0, 1) for each in rows.split([len(each) for each in seen.pieces])]


# Images are as large as a grid of tiles, where torchvision and Pillow scale them alike but for the
# whole image below them; their bytes then differ by one at most.
CASES = [
    MediaCase(
        name="llama4",
        config=llama4_config({}),
        preprocessor=preprocessor(16),
        images=((16, 16), (32, 48), (48, 16)),
        see=see,
        vectors=vectors,
        without={
            "theta": {"vision_config": llama4_config({})["vision_config"] | {"rope_theta": 100.0}}
        },
    ),
    MediaCase(
        name="llama4_few",  # 3 by 3 patches make a vector; at most 4 tiles
        config=llama4_config(
            {
                "hidden_size": 12,
                "image_size": 18,
                "intermediate_size": 48,
                "num_attention_heads": 3,
                "patch_size": 3,
                "projector_input_dim": 20,
                "projector_output_dim": 20,
                "vision_output_dim": 20,
            }
        ),
        preprocessor=preprocessor(18, max_patches=4),
        images=((18, 18), (18, 72), (36, 36)),
        see=see,
        vectors=vectors,
    ),
]
