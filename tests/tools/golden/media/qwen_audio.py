"""Qwen2-Audio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.tools.golden.media.case import MediaCase, Reader, Seen

SOFT, BEGIN, END = 262, 263, 264  # behind the tokens of `tiny_folder`


def hear(case: MediaCase, sounds: Sequence[np.ndarray]) -> Seen:
    from transformers import WhisperFeatureExtractor

    process = WhisperFeatureExtractor.from_dict(case.preprocessor)
    made = process(
        list(sounds), sampling_rate=16_000, return_attention_mask=True, return_tensors="pt"
    )
    given, mask = made["input_features"], made["attention_mask"]
    frames = mask.sum(-1).tolist()
    rows = [[BEGIN, *[SOFT] * ((((count - 1) // 2 + 1) - 2) // 2 + 1), END] for count in frames]
    pieces = [each[:, :count].T.numpy() for each, count in zip(given, frames, strict=True)]
    return Seen(rows, {"input_features": given, "feature_attention_mask": mask}, pieces)


def vectors(model: Any, seen: Seen, prompt: Sequence[int]) -> Sequence[Any]:
    """What the model puts in the places of the sounds, caught on its way to the decoder."""
    import torch

    caught: list[Any] = []
    hook = model.model.language_model.register_forward_pre_hook(
        lambda _, __, named: caught.append(named["inputs_embeds"][0]), with_kwargs=True
    )
    model(input_ids=torch.tensor([prompt]), **seen.inputs)
    hook.remove()
    tokens = np.asarray(prompt)
    starts, ends = np.flatnonzero(tokens == BEGIN), np.flatnonzero(tokens == END)
    return [caught[0][start + 1 : end] for start, end in zip(starts, ends, strict=True)]


QWEN_AUDIO = Reader(hear, vectors)

CASES = [
    MediaCase(
        "qwen2_audio",
        QWEN_AUDIO,
        sounds=(9_113, 4_000),
        without={"activation": {"audio_config.activation_function": "relu"}},
    ),
    # One fills its window, the next ends just before a frame's end.
    MediaCase("qwen2_audio_whole", QWEN_AUDIO, sounds=(32_000, 31_999, 641, 20_001)),
]
