"""The grid of Mistral 3 and of LLaVA with Pixtral's tower."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.golden.families_maker.decoders import mistral
from tests.golden.families_maker.dense.ministral import MINISTRAL3
from tests.golden.media_maker.case import MediaCase, Seen
from tests.golden.media_maker.naming import later

VOCAB = 267  # the tokens of `tiny_folder`, those of an image, and two rows more
SOFT, BREAK, END = 262, 263, 264


def vision(**sizes: Any) -> dict[str, Any]:
    return {
        "attention_dropout": 0.0,
        "head_dim": 8,
        "hidden_act": "silu",
        "hidden_size": 16,
        "image_size": 48,
        "initializer_range": 0.02,
        "intermediate_size": 24,
        "model_type": "pixtral",
        "num_attention_heads": 2,
        "num_channels": 3,
        "num_hidden_layers": 2,
        "patch_size": 4,
        "rope_theta": 10000.0,
    } | sizes


def mistral3(text: dict[str, Any], tower: dict[str, Any], **outer: Any) -> dict[str, Any]:
    return {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "eos_token_id": 2,
        "image_token_index": SOFT,
        "model_type": "mistral3",
        "multimodal_projector_bias": False,
        "projector_hidden_act": "gelu",
        "spatial_merge_size": 2,
        "text_config": {key: value for key, value in text.items() if key != "architectures"},
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vision_config": tower,
        "vision_feature_layer": -1,
    } | outer


def llava(text: dict[str, Any], tower: dict[str, Any], **outer: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlavaForConditionalGeneration"],
        "image_seq_length": 1,
        "image_token_index": SOFT,
        "model_type": "llava",
        "multimodal_projector_bias": True,
        "projector_hidden_act": "gelu",
        "text_config": {key: value for key, value in text.items() if key != "architectures"},
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vision_config": tower,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
    } | outer


def preprocessor(patch: int, longest: int, **own: Any) -> dict[str, Any]:
    """As published."""
    return {
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_processor_type": "PixtralImageProcessor",
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "patch_size": patch,
        "processor_class": "PixtralProcessor",
        "resample": 3,
        "rescale_factor": 0.00392156862745098,
        "size": {"longest_edge": longest},
    } | own


def factor(case: MediaCase) -> int:
    """Pixels of a side of a vector."""
    own = case.config["vision_config"]["patch_size"]
    return own * case.config.get("spatial_merge_size", 1)


def see(case: MediaCase, images: Sequence[np.ndarray]) -> Seen:
    """Text, image, text, image, ..., text."""
    import torch
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    side = factor(case)
    process = PixtralImageProcessorPil.from_dict(case.preprocessor)
    made = process(list(images), return_tensors="pt", patch_size={"height": side, "width": side})
    sizes = [tuple(map(int, size)) for size in made["image_sizes"]]
    prompt = [1, *case.words(0, 5)]
    for number, (height, width) in enumerate(sizes):
        row = [*[SOFT] * (width // side), BREAK]
        prompt += [*(row * (height // side))[:-1], END, *case.words(1 + number, 1 + 3 * number)]
    inputs = {"pixel_values": made["pixel_values"], "image_sizes": torch.tensor(sizes)}
    pixels = zip(made["pixel_values"], sizes, strict=True)
    return Seen(prompt, inputs, [each[:, :h, :w].numpy() for each, (h, w) in pixels])


def vectors(model: Any, seen: Seen) -> Sequence[Any]:
    return list(model.get_image_features(**seen.inputs).pooler_output)


SMALL = mistral3(mistral(head_dim=10, sliding_window=None, vocab_size=VOCAB), vision())
LARGE = mistral3(
    MINISTRAL3 | {"vocab_size": VOCAB},
    vision(hidden_size=24, num_attention_heads=3, patch_size=5, num_hidden_layers=3),
    multimodal_projector_bias=True,
    spatial_merge_size=1,
)
PIXTRAL = llava(
    mistral(head_dim=10, sliding_window=None, num_key_value_heads=1, vocab_size=VOCAB),
    vision(hidden_size=32, num_attention_heads=2, head_dim=16, hidden_act="gelu"),
)


def changed(config: dict[str, Any], **tower: Any) -> dict[str, Any]:
    return {"vision_config": config["vision_config"] | tower}


CASES = [
    MediaCase(
        name="mistral3",
        config=SMALL,
        preprocessor=preprocessor(4, 48),
        # None that is resized is taller than wide: Pillow 12 and 13 round those differently.
        images=((30, 41), (40, 8), (60, 100), (7, 9)),
        see=see,
        vectors=vectors,
        without={
            "theta": changed(SMALL, rope_theta=100.0),
            "gate": changed(SMALL, hidden_act="gelu"),
        },
    ),
    MediaCase(
        name="mistral3_ministral3",  # one patch a vector, and biases
        config=LARGE,
        preprocessor=preprocessor(5, 30, image_mean=[0.4, 0.5, 0.6], image_std=[0.3, 0.2, 0.25]),
        images=((25, 10), (20, 70), (10, 10)),
        see=see,
        vectors=vectors,
        published=later,
    ),
    MediaCase(
        name="llava_pixtral",
        config=PIXTRAL,
        preprocessor=preprocessor(4, 24),
        images=((16, 12), (40, 64)),
        see=see,
        vectors=vectors,
        without={"projector": {"projector_hidden_act": "relu"}},
    ),
]
