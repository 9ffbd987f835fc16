"""The grid of Qwen2-Audio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.golden.families_maker.decoders import qwen2
from tests.golden.media_maker.case import MediaCase, Seen

VOCAB = 267  # the tokens of `tiny_folder`, those of a sound, and two rows more
SOFT, BEGIN, END = 262, 263, 264
_HOP, _RATE = 160, 16_000


def encoder(**sizes: Any) -> dict[str, Any]:
    return {
        "activation_dropout": 0.0,
        "activation_function": "gelu",
        "attention_dropout": 0.0,
        "d_model": 16,
        "dropout": 0.0,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 24,
        "encoder_layerdrop": 0.0,
        "encoder_layers": 2,
        "init_std": 0.02,
        "max_source_positions": 50,
        "model_type": "qwen2_audio_encoder",
        "num_mel_bins": 20,
        "scale_embedding": False,
    } | sizes


def qwen2_audio(tower: dict[str, Any], **text: Any) -> dict[str, Any]:
    inner = qwen2(vocab_size=VOCAB, **text)
    return {
        "architectures": ["Qwen2AudioForConditionalGeneration"],
        "audio_config": tower,
        "audio_token_index": SOFT,
        "eos_token_id": 2,
        "ignore_index": -100,
        "model_type": "qwen2_audio",
        "text_config": {key: value for key, value in inner.items() if key != "architectures"},
        "torch_dtype": "bfloat16",
        "vocab_size": VOCAB,
    }


def preprocessor(bins: int, seconds: int) -> dict[str, Any]:
    """As published."""
    return {
        "chunk_length": seconds,
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": bins,
        "hop_length": _HOP,
        "n_fft": 400,
        "n_samples": seconds * _RATE,
        "nb_max_frames": seconds * _RATE // _HOP,
        "padding_side": "right",
        "padding_value": 0.0,
        "processor_class": "Qwen2AudioProcessor",
        "return_attention_mask": True,
        "sampling_rate": _RATE,
    }


def hear(case: MediaCase, sounds: Sequence[np.ndarray]) -> Seen:
    """Text, sound, text, sound, ..., text."""
    from transformers import WhisperFeatureExtractor

    process = WhisperFeatureExtractor.from_dict(case.preprocessor)
    made = process(
        list(sounds), sampling_rate=_RATE, return_attention_mask=True, return_tensors="pt"
    )
    mask = made["attention_mask"]
    prompt = [1, *case.words(0, 5)]
    for number, frames in enumerate(mask.sum(-1).tolist()):
        rows = (((frames - 1) // 2 + 1) - 2) // 2 + 1
        prompt += [BEGIN, *[SOFT] * rows, END, *case.words(1 + number, 1 + 3 * number)]
    inputs = {"input_features": made["input_features"], "feature_attention_mask": mask}
    pieces = [
        each[:, :frames].T.numpy()
        for each, frames in zip(made["input_features"], mask.sum(-1).tolist(), strict=True)
    ]
    return Seen(prompt, inputs, pieces)


def vectors(model: Any, seen: Seen) -> Sequence[Any]:
    """What the model puts in the places of the sounds, caught on its way to the decoder."""
    import torch

    caught: list[Any] = []
    hook = model.model.language_model.register_forward_pre_hook(
        lambda _, __, named: caught.append(named["inputs_embeds"][0]), with_kwargs=True
    )
    model(input_ids=torch.tensor([seen.prompt]), **seen.inputs)
    hook.remove()
    prompt, rows = np.asarray(seen.prompt), list[Any]()
    starts, ends = np.flatnonzero(prompt == BEGIN), np.flatnonzero(prompt == END)
    for start, end in zip(starts, ends, strict=True):
        rows.append(caught[0][start + 1 : end])
    return rows


CASES = [
    MediaCase(
        name="qwen2_audio",
        config=qwen2_audio(encoder()),
        preprocessor=preprocessor(20, 1),
        sounds=(9_113, 4_000),
        see=hear,
        vectors=vectors,
        without={
            "activation": {"audio_config": encoder(activation_function="relu")},
        },
    ),
    MediaCase(
        name="qwen2_audio_whole",  # one fills its window, the next ends just before a frame's end
        config=qwen2_audio(
            encoder(
                d_model=24,
                encoder_attention_heads=3,
                encoder_layers=1,
                max_source_positions=100,
                num_mel_bins=80,
            ),
            num_key_value_heads=4,
        ),
        preprocessor=preprocessor(80, 2),
        sounds=(32_000, 31_999, 641, 20_001),
        see=hear,
        vectors=vectors,
    ),
]
