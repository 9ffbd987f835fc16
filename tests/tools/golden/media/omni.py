"""Qwen2.5-Omni and Qwen3-Omni: images, videos and sounds in one prompt, and what a model that
speaks adds to a checkpoint, which is not read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.tools.golden.media import qwen
from tests.tools.golden.media.case import MediaCase, Reader, Seen

# Behind the tokens of `tiny_folder`.
BEGIN, FINISH, START, END, SOUND, IMAGE, VIDEO = range(262, 269)
_VISION = ("patch_size", "temporal_patch_size", "merge_size", "image_mean", "image_std")
_VISION += ("min_pixels", "max_pixels", "size")


def perceive(case: MediaCase, media: Sequence[np.ndarray]) -> Seen:
    """Each medium is processed by itself, as it is where it is sent alone."""
    import torch

    inputs = dict[str, Any]()
    rows, pieces, features = list[list[int]](), list[np.ndarray](), list[Any]()
    for medium in media:
        if medium.ndim == 1:
            made = _heard(case, medium)
            features.append(made)
            count = _vectors(case, made.shape[1])
            if case.heard and VIDEO in (rows[-1] if rows else ()) and SOUND not in rows[-1]:
                grid = inputs["video_grid_thw"].numpy()[-1:]
                rows[-1] = [START, *_in_turns(case, grid, count), END]
            else:
                rows.append([BEGIN, *[SOUND] * count, FINISH])
            pieces.append(made.T.numpy())
            continue
        found = (_watched if medium.ndim == 4 else _seen)(case, medium)
        inputs = _joined(inputs, found)
        values = found.get("pixel_values", found.get("pixel_values_videos"))
        grid = found.get("image_grid_thw", found.get("video_grid_thw"))[0]
        token = VIDEO if medium.ndim == 4 else IMAGE
        rows.append([START, *[token] * (int(grid.prod()) // 4), END])
        pieces.append(values.numpy())
    if features:
        longest = max(each.shape[1] for each in features)
        padded = [torch.nn.functional.pad(f, (0, longest - f.shape[1])) for f in features]
        inputs["input_features"] = torch.stack(padded)
        mask = torch.zeros(len(features), longest, dtype=torch.long)
        for row, each in zip(mask, features, strict=True):
            row[: each.shape[1]] = 1
        inputs["feature_attention_mask"] = mask
    if "video_grid_thw" in inputs:
        seconds = 2 / _RATES[case.name.partition("_omni")[0]]
        inputs["video_second_per_grid"] = torch.tensor([seconds] * len(inputs["video_grid_thw"]))
    if case.heard:
        inputs["use_audio_in_video"] = True
    return Seen(rows, inputs, pieces)


def _in_turns(case: MediaCase, grid: np.ndarray, count: int) -> list[int]:
    """Tokens of a video of this grid with its sound of so many vectors, as the processor writes
    them."""
    from types import SimpleNamespace

    from transformers.models.qwen2_5_omni import processing_qwen2_5_omni as second
    from transformers.models.qwen3_omni_moe import processing_qwen3_omni_moe as third

    own = case.config[case.part]
    is_second = "qwen2_5" in case.name
    made = object.__new__(second.Qwen2_5OmniProcessor if is_second else third.Qwen3OmniMoeProcessor)
    made.video_processor = SimpleNamespace(merge_size=2)
    tokens = {"B": BEGIN, "V": VIDEO, "A": SOUND, "E": FINISH}
    made.audio_bos_token, made.video_token, made.audio_token, made.audio_eos_token = tokens
    seconds = 2 / _RATES["qwen2_5" if is_second else "qwen3"]
    text = made.replace_video_with_audio_token(
        {"video_grid_thw": grid, "video_second_per_grid": [seconds]},
        0,
        {"num_audio_tokens": [count]},
        0,
        position_id_per_seconds=own["position_id_per_seconds"],
        seconds_per_chunk=own["seconds_per_chunk"],
    )
    return [tokens[letter] for letter in text]


_RATES = {"qwen2_5": 2.0, "qwen3": 1.0}  # frames a second that positions count by


def _joined(inputs: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    import torch

    both = {key: torch.cat([inputs[key], found[key]]) for key in found if key in inputs}
    return {**inputs, **found, **both}


def _heard(case: MediaCase, samples: np.ndarray) -> Any:
    """f32[bins, frames]"""
    from transformers import WhisperFeatureExtractor

    process = WhisperFeatureExtractor.from_dict(case.preprocessor)
    how = {"padding": "max_length"} if "qwen2_5" in case.name else {"truncation": False}
    made = process(
        samples,
        sampling_rate=16_000,
        return_attention_mask=True,
        return_tensors="pt",
        **({"padding": True} | how),
    )
    return made["input_features"][0, :, : int(made["attention_mask"].sum())]


def _vectors(case: MediaCase, frames: int) -> int:
    if "qwen2_5" in case.name:
        from transformers.models.qwen2_5_omni import processing_qwen2_5_omni as second

        return second._get_feat_extract_output_lengths(frames)
    from transformers.models.qwen3_omni_moe import processing_qwen3_omni_moe as third

    return third._get_feat_extract_output_lengths(frames)


def _seen(case: MediaCase, image: np.ndarray) -> dict[str, Any]:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    own = {key: value for key, value in case.preprocessor.items() if key in _VISION}
    return dict(Qwen2VLImageProcessorPil.from_dict(own)([image], return_tensors="pt"))


def _watched(case: MediaCase, video: np.ndarray) -> dict[str, Any]:
    import torch

    made = qwen.video_processor(case)(
        [torch.from_numpy(video).permute(0, 3, 1, 2)],
        video_metadata=[{"fps": qwen.RATE, "total_num_frames": len(video)}],
        return_metadata=True,
        return_tensors="pt",
    )
    return {key: made[key] for key in ("pixel_values_videos", "video_grid_thw")}


def vectors(model: Any, seen: Seen, prompt: Sequence[int]) -> Sequence[Any]:
    """Vectors of each medium, in the prompt's order; those of sounds add nothing to levels."""
    import torch

    found = dict[int, list[Any]]()
    given = seen.inputs
    if "pixel_values" in given:
        asked = {key: given[key] for key in ("pixel_values", "image_grid_thw")}
        found[IMAGE] = list(qwen.vectors(model, Seen([], asked, []), prompt))
    if "pixel_values_videos" in given:
        found[VIDEO] = list(qwen.watched(model, seen, prompt))
    if "input_features" in given:
        heard = model.get_audio_features(given["input_features"], given["feature_attention_mask"])
        counts = [row.count(SOUND) for row in seen.rows if SOUND in row]
        found[SOUND] = list(torch.split(heard.last_hidden_state, counts))
    kinds = [kind for row in seen.rows for kind in (IMAGE, VIDEO, SOUND) if kind in row]
    levels = len(getattr(model.config.vision_config, "deepstack_visual_indexes", ()))
    width = (1 + levels) * model.config.text_config.hidden_size
    each = [found[kind].pop(0) for kind in kinds]
    return [torch.nn.functional.pad(part, (0, width - part.shape[1])) for part in each]


def flat_names(name: str) -> str:
    """As published: below `thinker.`, beside the part that speaks."""
    return f"thinker.{name}"


OMNI = Reader(perceive, vectors, first=(), growth=2, masked=True)
THINKER = "Qwen2_5OmniThinkerForConditionalGeneration"
THINKER3 = "Qwen3OmniMoeThinkerForConditionalGeneration"

CASES = [
    # Of the video's pairs of frames the last lies further on than its sides are long.
    MediaCase(
        "qwen2_5_omni",
        OMNI,
        images=((30, 41), (16, 24)),
        sounds=(6_113, 4_000),
        videos=((9, 24, 32),),
        order=("sound_0", "image_0", "video_0", "image_1", "sound_1"),
        model=THINKER,
        part="thinker_config",
        published=flat_names,
        without={
            "time": {"position_id_per_seconds": 50},
            "windows": {"vision_config.fullatt_block_indexes": [0, 1, 2]},
            "chunks": {"audio_config.n_window": 20},
        },
    ),
    # A sound of three chunks, which see two of them at once.
    MediaCase(
        "qwen3_omni_moe",
        OMNI,
        images=((30, 41),),
        sounds=(33_113, 16_500),
        videos=((7, 24, 32),),
        order=("image_0", "sound_0", "video_0", "sound_1"),
        model=THINKER3,
        part="thinker_config",
        published=flat_names,
        without={
            "time": {"position_id_per_seconds": 50},
            "windows": {"audio_config.n_window_infer": 100},
            "levels": {"vision_config.deepstack_visual_indexes": [1, 2]},
        },
    ),
    # A sound that ends before its video, one that goes on behind it, and one that is sent alone.
    MediaCase(
        "qwen2_5_omni_heard",
        OMNI,
        images=((16, 24),),
        sounds=(6_113, 11_000, 4_000),
        videos=((9, 16, 24), (5, 24, 16)),
        order=("video_0", "sound_0", "image_0", "sound_2", "video_1", "sound_1"),
        heard=True,
        model=THINKER,
        part="thinker_config",
        published=flat_names,
        without={"time": {"position_id_per_seconds": 12}},
    ),
    MediaCase(
        "qwen3_omni_moe_heard",
        OMNI,
        images=((30, 41),),
        sounds=(9_113, 20_113, 16_500),
        videos=((9, 16, 24), (5, 32, 16)),
        order=("sound_2", "video_0", "sound_0", "image_0", "video_1", "sound_1"),
        heard=True,
        model=THINKER3,
        part="thinker_config",
        published=flat_names,
        without={"time": {"position_id_per_seconds": 4}},
    ),
    # Shorter than a chunk, where no silence is convolved behind it.
    MediaCase(
        "qwen3_omni_moe_short",
        OMNI,
        sounds=(9_113,),
        model=THINKER3,
        part="thinker_config",
        published=flat_names,
    ),
]
