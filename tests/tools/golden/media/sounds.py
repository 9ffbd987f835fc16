"""Qwen2-Audio, Voxtral, Granite Speech, Gemma 3n, also its images, and Gemma 4's sounds."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
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
    tokens, caught = np.asarray(prompt), _embedded(model, seen, prompt)
    starts, ends = np.flatnonzero(tokens == BEGIN), np.flatnonzero(tokens == END)
    return [caught[start + 1 : end] for start, end in zip(starts, ends, strict=True)]


def _embedded(model: Any, seen: Seen, prompt: Sequence[int]) -> Any:
    """f32[S, D]: the input of the decoder."""
    import torch

    caught: list[Any] = []
    hook = model.model.language_model.register_forward_pre_hook(
        lambda _, __, named: caught.append(named["inputs_embeds"][0]), with_kwargs=True
    )
    model(input_ids=torch.tensor([prompt]), **seen.inputs)
    hook.remove()
    return caught[0]


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


# Behind the tokens of `tiny_folder`: the beginning of a sound, its tokens and its end.
GEMMA_3N, GEMMA_4 = (262, 271, 270), (262, 263, 264)
IMAGES_3N = (263, 267, 266)  # likewise, of an image


def perceive_3n(case: MediaCase, media: Sequence[np.ndarray]) -> Seen:
    """The sounds of a case are as long, filled to whole 128 samples: a batch is as each alone."""
    from transformers import Gemma3nAudioFeatureExtractor
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    _kept_arguments()
    sounds, images = ([one for one in media if one.ndim == ndim] for ndim in (1, 3))
    inputs, pieces = dict[str, Any](), list[Any]()
    if sounds:
        heard = Gemma3nAudioFeatureExtractor.from_dict(case.preprocessor)
        inputs |= heard(sounds, return_tensors="pt")
        pieces += [each.numpy() for each in inputs["input_features"]]
    if images:
        process = SiglipImageProcessorPil.from_dict(case.preprocessor)
        inputs |= process(images, return_tensors="pt")
        pieces += [each.numpy() for each in inputs["pixel_values"]]
    counts = [case.config[f"{kind}_soft_tokens_per_image"] for kind in ("audio", "vision")]
    marks = {1: (GEMMA_3N, counts[0]), 3: (IMAGES_3N, counts[1])}
    rows = list[list[int]]()
    for (begin, soft, end), count in (marks[one.ndim] for one in media):
        rows.append([begin, *[soft] * count, end])
    order = [*np.argsort([one.ndim for one in media], kind="stable")]
    return Seen(rows, inputs, [pieces[order.index(n)] for n in range(len(media))])


def _kept_arguments() -> None:
    """Let timm change a copy of model_args: it writes classes into the blocks of the config, which
    transformers then cannot save."""
    from transformers.models.timm_wrapper import modeling_timm_wrapper as wrapper

    made = wrapper._create_timm_model_with_error_handling
    wrapper._create_timm_model_with_error_handling = lambda config, **args: made(
        config, **deepcopy(args)
    )


def hear_4(case: MediaCase, sounds: Sequence[np.ndarray]) -> Seen:
    from transformers import Gemma4AudioFeatureExtractor

    process = Gemma4AudioFeatureExtractor.from_dict(case.of("feature_extractor"))
    made = process(list(sounds), return_tensors="pt")
    begin, soft, end = GEMMA_4
    counts = [int(mask[::2][::2].sum()) for mask in made["input_features_mask"]]
    rows = [[begin, *[soft] * count, end] for count in counts]
    given = zip(made["input_features"], made["input_features_mask"], strict=True)
    return Seen(rows, dict(made), [each[mask].numpy() for each, mask in given])


def vectors_3n(model: Any, seen: Seen, prompt: Sequence[int]) -> Sequence[Any]:
    """With that of the token behind each medium, which is of an encoder's vocabulary, too."""
    caught = _embedded(model, seen, prompt)
    starts = np.flatnonzero(np.isin(prompt, (GEMMA_3N[0], IMAGES_3N[0])))
    rows = zip(starts, seen.rows, strict=True)
    return [caught[start + 1 : start + len(each)] for start, each in rows]


def vectors_4(model: Any, seen: Seen, prompt: Sequence[int]) -> Sequence[Any]:
    (begin, *_), caught = GEMMA_4, _embedded(model, seen, prompt)
    starts = np.flatnonzero(np.asarray(prompt) == begin)
    rows = zip(starts, seen.rows, strict=True)
    return [caught[start + 1 : start + len(each) - 1] for start, each in rows]


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
    # Few blocks of each kind, and both encoders in one prompt. No image is taller than wide, as in
    # gemma3.py.
    MediaCase(
        "gemma3n",
        Reader(perceive_3n, vectors_3n),
        images=((41, 67), (20, 70)),
        sounds=(20_001, 20_090),
        order=("sound_0", "image_0", "image_1", "sound_1"),
        without={
            "cap": {"audio_config.conf_attention_logit_cap": 50.0},
            "near": {"audio_config.conf_attention_context_left": 3},
            "share": {"audio_config.conf_residual_weight": 1.0},
        },
    ),
    # Places behind are seen, a spectrogram of its own, and as long as a sound may be.
    MediaCase(
        "gemma3n_future",
        Reader(perceive_3n, vectors_3n),
        sounds=(25_590,),
        without={"ahead": {"audio_config.conf_attention_context_right": 0}},
    ),
    # All blocks of the published encoder of images, with a twentieth of their channels.
    MediaCase("gemma3n_vision", Reader(perceive_3n, vectors_3n), images=((41, 67), (5, 90))),
    MediaCase(
        "gemma4_sounds",
        Reader(hear_4, vectors_4),
        sounds=(9_113, 20_001),
        without={
            "cap": {"audio_config.attention_logit_cap": 50.0},
            "near": {"audio_config.attention_context_left": 3},
        },
    ),
    MediaCase(
        "gemma4_sounds_future",
        Reader(hear_4, vectors_4),
        sounds=(641, 16_000, 4_000),
        without={"ahead": {"audio_config.attention_context_right": 0}},
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
