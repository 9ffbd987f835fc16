"""Phi-4-multimodal: images and sounds in one prompt, and sounds alone, projected apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.tools.golden.media.case import MediaCase, Reader, Seen

IMAGE, SOUND = 262, 263  # behind the tokens of `tiny_folder`
_OF_IMAGES = ("dynamic_hd", "image_mean", "image_std", "patch_size", "size")


def perceive(case: MediaCase, media: Sequence[np.ndarray]) -> Seen:
    """Sounds of one prompt have one length, so that none is filled up."""
    import torch
    from transformers import Phi4MultimodalFeatureExtractor, Phi4MultimodalImageProcessor

    given = case.preprocessor
    inputs, rows, pieces = dict[str, Any](), list[list[int]](), list[np.ndarray]()
    images = [torch.from_numpy(each).permute(2, 0, 1) for each in media if each.ndim == 3]
    sounds = [each for each in media if each.ndim == 1]
    if images:
        own = {key: value for key, value in given.items() if key in _OF_IMAGES}
        made = Phi4MultimodalImageProcessor(**own)(images, return_tensors="pt")
        inputs |= {key: made[key] for key in made if key != "num_img_tokens"}
    if sounds:
        own = {key: value for key, value in given.items() if key not in _OF_IMAGES}
        own.pop("image_processor_type"), own.pop("feature_extractor_type")
        heard = Phi4MultimodalFeatureExtractor(**own)(
            sounds, sampling_rate=16_000, return_tensors="pt"
        )
        inputs |= dict(heard)
    seen, known = 0, 0
    for medium in media:
        if medium.ndim == 3:
            rows.append([IMAGE] * _vectors(case, inputs, seen))
            pieces.append(inputs["image_pixel_values"][seen].numpy())
            seen += 1
        else:
            rows.append([SOUND] * int(inputs["audio_embed_sizes"][known]))
            pieces.append(inputs["audio_input_features"][known].numpy())
            known += 1
    return Seen(rows, inputs, pieces)


def _vectors(case: MediaCase, inputs: dict[str, Any], number: int) -> int:
    """As the model makes of an image; the processor counts those of the published sizes."""
    side = case.config["vision_config"]["crop_size"]
    high, wide = (int(each) // side for each in inputs["image_sizes"][number])
    mask = inputs["image_attention_mask"][number, 1 : 1 + high * wide, ::2, ::2]
    half = mask.shape[-1]
    grid = mask.reshape(high, wide, half, half).transpose(1, 2).reshape(high * half, -1)
    return int(grid.sum() + grid[:, 0].sum()) + 1 + half * (half + 1)


def vectors(model: Any, seen: Seen, prompt: Sequence[int]) -> Sequence[Any]:
    import torch

    ids = torch.tensor([prompt])
    table = model.model.embed_tokens(ids)
    made = model.model.embed_tokens_extend(ids, table, **seen.inputs)[0]
    each, found = iter(np.flatnonzero(np.isin(prompt, (IMAGE, SOUND))).tolist()), list[Any]()
    for row in seen.rows:
        found.append(made[[next(each) for _ in row]])
    return found


# Of the text model: the tower of sounds has modules of these names, too.
_ADAPTED = r"model\.layers\.\d+\.(self_attn\.(qkv|o)|mlp\.(gate_up|down))_proj"
PHI4 = Reader(perceive, vectors)
CASES = [
    # Grids of two crops and of six, whose last patches are white.
    MediaCase(
        "phi4_multimodal",
        PHI4,
        images=((30, 41), (75, 50)),
        sounds=(9_113, 9_113),
        order=("image_0", "sound_0", "image_1", "sound_1"),
        adapter={"target_modules": _ADAPTED},
        without={"layer": {"vision_config.feature_layer": -1}},
    ),
    MediaCase(
        "phi4_multimodal_sounds",
        PHI4,
        sounds=(6_431,),
        without={"gate": {"audio_config.conv_glu_type": "gelu"}},
    ),
]
