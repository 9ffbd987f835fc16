"""Qwen2-Audio, Voxtral and Granite Speech."""

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


def windows(case: MediaCase, sounds: Sequence[np.ndarray]) -> Seen:
    """As Voxtral's processor takes a sound: filled to whole windows, which it is then cut into."""
    import torch
    from transformers import WhisperFeatureExtractor

    process = WhisperFeatureExtractor.from_dict(case.preprocessor)
    audio, each = case.config["audio_config"], list[Any]()
    for sound in sounds:
        made = process(
            sound,
            sampling_rate=16_000,
            padding=True,
            truncation=False,
            pad_to_multiple_of=process.n_samples,
            return_tensors="pt",
        )["input_features"]
        frames = 2 * audio["max_source_positions"]
        each.append(made.reshape(process.feature_size, -1, frames).transpose(0, 1))
    together = audio["intermediate_size"] // audio["hidden_size"]
    counts = [len(one) * audio["max_source_positions"] // together for one in each]
    rows = [[BEGIN, *[SOFT] * count, END] for count in counts]
    pieces = [one.transpose(1, 2).flatten(0, 1).numpy() for one in each]
    return Seen(rows, {"input_features": torch.cat(each)}, pieces)


def stacked(case: MediaCase, sounds: Sequence[np.ndarray]) -> Seen:
    """As Granite Speech's processor takes sounds of one length, which it does not fill up."""
    from transformers import GraniteSpeechFeatureExtractor

    process = GraniteSpeechFeatureExtractor.from_dict(case.preprocessor)
    made = process(list(sounds))
    rows = [[SOFT] * count for count in made["audio_embed_sizes"]]
    inputs = {key: made[key] for key in ("input_features", "input_features_mask")}
    return Seen(rows, inputs, [each.numpy() for each in made["input_features"]])


def projected(model: Any, seen: Seen, prompt: Sequence[int]) -> Sequence[Any]:
    """As they stand among the vectors of tokens, which the text model multiplies."""
    made = model.get_audio_features(seen.inputs["input_features"]).pooler_output
    return list(made * model.config.text_config.embedding_multiplier)


GRANITE = Reader(stacked, projected)
QWEN_AUDIO, VOXTRAL = Reader(hear, vectors), Reader(windows, vectors)

CASES = [
    MediaCase(
        "qwen2_audio",
        QWEN_AUDIO,
        sounds=(9_113, 4_000),
        without={"activation": {"audio_config.activation_function": "relu"}},
    ),
    # One fills its window, the next ends just before a frame's end.
    MediaCase("qwen2_audio_whole", QWEN_AUDIO, sounds=(32_000, 31_999, 641, 20_001)),
    # Of a part of a window, and of a window and a bit.
    MediaCase(
        "voxtral",
        VOXTRAL,
        sounds=(9_113, 33_161),
        without={
            "activation": {"audio_config.activation_function": "relu"},
            "projector": {"projector_hidden_act": "relu"},
        },
    ),
    # Of three blocks, the last in part, and of five windows, likewise.
    MediaCase(
        "granite_speech",
        GRANITE,
        sounds=(9_113, 9_113),
        adapter={"target_modules": ["q_proj", "v_proj"], "rank_pattern": {"v_proj": 5}},
        without={
            "activation": {"projector_config.hidden_act": "relu"},
        },
    ),
    # Whole blocks and windows; layers in the middle are read, one of them with its letters added.
    MediaCase("granite_speech_plus", GRANITE, sounds=(11_039,)),
]
