"""Families whose towers are built like Qwen's, and that prepare images in their own way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tests.tools.golden.media.case import MediaCase, Reader, Seen, features
from tests.tools.golden.media.qwen import (
    END,
    LENGTHS,
    QWEN,
    RATE,
    START,
    THREE,
    TOKEN,
    VIDEO,
    VIDEOS,
    WATCHING,
)

AXIAL = {"rope_type": "axial", "rope_theta": 9}
BEGIN_VIDEO, END_VIDEO, NEWLINE = 268, 269, 268
# Positions are those of a text.
LOOKING, FOLLOWING = replace(QWEN, kinds=None), replace(WATCHING, kinds=None)
# Width and height of images, of which processors tell what they become
SIZES = [
    (4, 4),
    (64, 40),
    (1, 300),
    (300, 1),
    (131, 77),
    (200, 200),
    (257, 63),
    (63, 255),
    (9, 700),
]
SIZES += [(333, 1000), (1000, 250), (7, 33), (12, 12)]


def processor(given: dict[str, Any]) -> Any:
    """The processor of images or videos that a file names."""
    import transformers

    (kind,) = (given[key] for key in given if key.endswith("_processor_type"))
    return getattr(transformers, kind)(
        **{key: value for key, value in given.items() if not key.endswith("_processor_type")}
    )


def look(case: MediaCase, images: Sequence[np.ndarray]) -> Seen:
    """Images one by one, which keep their size."""
    import torch

    process = processor(case.preprocessor)
    each = [
        process([torch.from_numpy(image).permute(2, 0, 1)], return_tensors="pt") for image in images
    ]
    grids = torch.cat([one["image_grid_thw"] for one in each])
    counts = (grids.prod(-1) // process.merge_size**2).tolist()
    rows = [[START, *[TOKEN] * count, END] for count in counts]
    pixels = [one["pixel_values"] for one in each]
    inputs = {"pixel_values": torch.cat(pixels), "image_grid_thw": grids}
    return Seen(rows, inputs, [one.numpy() for one in pixels], _sizes(process))


def _sizes(process: Any) -> dict[str, np.ndarray]:
    """Patches that images of SIZES become; of Qwen's own rule nothing."""
    if not hasattr(process, "max_patches") and not hasattr(process, "max_image_tokens"):
        return {}
    counts = [process.get_number_of_image_patches(high, wide, {}) for wide, high in SIZES]
    return {"sizes": np.asarray(counts, np.int32)}


def follow(case: MediaCase, videos: Sequence[np.ndarray]) -> Seen:
    """Videos part by part, a few tokens of a text before each."""
    import torch
    from transformers.video_utils import VideoMetadata

    process = processor(case.video_preprocessor)
    each = [
        process(
            [torch.from_numpy(video).permute(0, 3, 1, 2)],
            video_metadata=[
                {"fps": RATE, "total_num_frames": len(video), "duration": len(video) / RATE}
            ],
            return_metadata=True,
            return_tensors="pt",
        )
        for video in videos
    ]
    grids = torch.cat([one["video_grid_thw"] for one in each])
    inputs = {"pixel_values_videos": torch.cat([one["pixel_values_videos"] for one in each])}
    inputs["video_grid_thw"] = grids
    pieces = [one["pixel_values_videos"].numpy() for one in each]
    parts = _PARTS[case.config["model_type"]]
    rows = [parts(one["video_grid_thw"].tolist(), process.merge_size**2) for one in each]
    if not process.do_sample_frames:
        return Seen(rows, inputs, pieces)
    found = list[list[int]]()
    for total, rate in LENGTHS[:7]:
        told = VideoMetadata(total_num_frames=total, fps=rate, duration=total / rate)
        found.append([int(at) for at in process.sample_frames(told, fps=process.fps)])
    chosen = np.full((len(found), max(map(len, found))), -1, np.int32)
    for row, mine in zip(chosen, found, strict=True):
        row[: len(mine)] = mine
    return Seen(rows, inputs, pieces, {"chosen": chosen})


def _parts(grids: Sequence[Sequence[int]], squares: int) -> list[int]:
    """Of Kimi K2.5: frames of a part become one."""
    return [
        token
        for at, (_, high, wide) in enumerate(grids)
        for token in (10 + at, 20, START, *[VIDEO] * (high * wide // squares), END)
    ]


def _pairs(grids: Sequence[Sequence[int]], squares: int) -> list[int]:
    """Of GLM-5.3: each pair of frames stands for itself, by the token of images, between marks."""
    inside = [
        token
        for times, high, wide in grids
        for at in range(times)
        for token in (START, *[TOKEN] * (high * wide // squares), END, 10 + at, 20)
    ]
    return [BEGIN_VIDEO, *inside, END_VIDEO]


def _segments(grids: Sequence[Sequence[int]], squares: int) -> list[int]:
    """Of MiniMax-M3: frames that see each other, each for itself."""
    return [
        token
        for number, (times, high, wide) in enumerate(grids)
        for at in range(times)
        for token in (10 + number, 20 + at, START, *[VIDEO] * (high * wide // squares), END)
    ]


def _run(grids: Sequence[Sequence[int]], squares: int) -> list[int]:
    """Of Dots 3: one run of tokens for all frames."""
    return [token for grid in grids for token in [VIDEO] * (math.prod(grid) // squares)]


_PARTS = {"kimi_k25": _parts, "glm5_next": _pairs, "minimax_m3_vl": _segments, "dots3_note": _run}


def followed(model: Any, seen: Seen, prompt: Sequence[int]) -> Sequence[Any]:
    """Vectors of each video."""
    import torch

    pixels, grids = seen.inputs["pixel_values_videos"], seen.inputs["video_grid_thw"]
    inner = model if hasattr(model, "get_video_features") else model.model
    found = torch.cat(list(inner.get_video_features(pixels, grids).pooler_output))
    return list(torch.split(found, [row.count(VIDEO) + row.count(TOKEN) for row in seen.rows]))


def published_kimi(name: str) -> str:
    """Transformers 5.24 saves other names, which the case of videos keeps."""
    for saved, own in (
        ("language_model.model.blocks.", "language_model.model.layers."),
        ("vision_tower.encoder.patch_embed.", "vision_tower.patch_embed."),
        ("model.mm_projector.", "mm_projector."),
    ):
        name = name.replace(saved, own) if name.startswith(saved) else name
    return name


def window(case: MediaCase, images: Sequence[np.ndarray]) -> Seen:
    """Of Step 3.7: windows over an image, and the whole of it."""
    import torch

    process, vision = processor(case.preprocessor), case.config["vision_config"]
    stride = vision["patch_size"] * 4
    of_whole, of_part = (
        (side // stride) ** 2 for side in (process.size["height"], process.patch_size)
    )
    rows, locals_, wholes, counts, pieces = [], [], [], [], []
    for image in images:
        made = process([torch.from_numpy(image).permute(2, 0, 1)], return_tensors="pt")
        (count,) = made["num_local_patches"].tolist()
        ends = made.get("patch_newline_masks", [[]])[0]
        row = list[int]()
        for at in range(count):
            row += [START, *[TOKEN] * of_part, END, *([NEWLINE] if ends[at] else [])]
        rows.append([*row, START, *[TOKEN] * of_whole, END])
        counts.append(count)
        wholes.append(made["pixel_values"])
        locals_ += [made["pixel_values_local"]] if count else []
        pieces.append(made["pixel_values"].numpy())
    inputs: dict[str, Any] = {"pixel_values": torch.cat(wholes), "num_local_patches": counts}
    inputs["pixel_values_local"] = torch.cat(locals_)
    plans = [process._plan_patches(*size, 728, 504) for size in SIZES]
    flat = [[*whole, *cut, *rest] for whole, cut, *rest in plans]
    return Seen(rows, inputs, pieces, {"sizes": np.asarray(flat, np.int32)})


def inside(model: Any, seen: Seen, prompt: Sequence[int]) -> Sequence[Any]:
    """Vectors of each image, of a model within another."""
    return features(model.model, seen, prompt)


def listen(case: MediaCase, sounds: Sequence[np.ndarray]) -> Seen:
    """Of Dots 3: each sound in chunks."""
    from transformers import Dots3NoteFeatureExtractor

    keys = ("feature_size", "chunk_length")
    process = Dots3NoteFeatureExtractor(**{key: case.preprocessor[key] for key in keys})
    alone = [process([sound], sampling_rate=16_000) for sound in sounds]
    rows = [[START, *[SOUND] * int(each["num_audio_tokens"][0]), END] for each in alone]
    made = process([*sounds], sampling_rate=16_000)
    inputs = {key: made[key] for key in ("input_features", "chunk_sample_lengths")}
    pieces = [
        np.concatenate([chunk.T for chunk in each["input_features"].numpy()]) for each in alone
    ]
    return Seen(rows, inputs, pieces)


def listened(model: Any, seen: Seen, prompt: Sequence[int]) -> Sequence[Any]:
    """Vectors of each sound."""
    import torch

    found = model.model.get_audio_features(**seen.inputs).pooler_output
    return list(torch.split(found, [row.count(SOUND) for row in seen.rows]))


SOUND = 268
PLAIN = Reader(look, first=(), growth=4)
DOTS = Reader(look, inside, first=(), growth=4)
PARTS = Reader(follow, followed, first=(), growth=4)

CASES = [
    MediaCase(
        "exaone4_5",
        LOOKING,
        images=THREE,
        without={
            "windows": {"vision_config.fullatt_block_indexes": [0, 1, 2]},
            "window of text": {"text_config.sliding_window": 64},
        },
    ),
    MediaCase("exaone4_5_video", FOLLOWING, videos=VIDEOS),
    MediaCase(
        "kimi_k25",
        PLAIN,
        images=((30, 44), (16, 24), (9, 60)),
        published=published_kimi,
        without={"theta": {"vision_config.rope_parameters": AXIAL}},
    ),
    # Of the multiples of 8 pixels that its processor makes, so that none is resized.
    MediaCase(
        "minimax_m3",
        PLAIN,
        images=((32, 40), (16, 24), (8, 64)),
        without={"theta": {"vision_config.rope_parameters": AXIAL}},
    ),
    MediaCase("minimax_m3_video", PARTS, videos=((10, 16, 24), (6, 16, 16))),
    # One that is seen as a whole, one in six windows, one in three that are enlarged, one
    # that is padded. Of sizes that Pillow and torchvision resize alike.
    MediaCase(
        "step3p7",
        Reader(window, first=(), growth=4),
        images=((32, 32), (32, 48), (30, 10), (4, 32)),
        without={"theta": {"vision_config.rope_parameters": AXIAL}},
    ),
    MediaCase(
        "dots3_note",
        DOTS,
        images=((32, 40), (16, 24), (8, 64)),
        without={
            "experts": {"vision_config.capacity_factor": 1},
            "scale": {"vision_config.router_scale": 0.5},
        },
    ),
    MediaCase("dots3_note_video", PARTS, videos=((9, 16, 24), (6, 16, 16))),
    # In chunks of a second: of two and a bit, whose last vector is of no whole frame; of a full
    # one; of a few samples.
    MediaCase(
        "dots3_note_sounds",
        Reader(listen, listened, first=(), growth=4),
        sounds=(33_300, 16_000, 700),
        without={
            "rotation": {
                "audio_config.rope_parameters": {
                    "partial_rotary_factor": 0.5,
                    "rope_theta": 2.0,
                    "rope_type": "default",
                }
            }
        },
    ),
    MediaCase(
        "glm5_next",
        PLAIN,
        images=((30, 44), (16, 24), (9, 60)),
        without={"gate": {"vision_config.swiglu_limit": 1e6}},
    ),
    MediaCase("glm5_next_video", PARTS, videos=((9, 24, 30), (7, 16, 40))),
    MediaCase("kimi_k25_video", PARTS, videos=((9, 24, 30), (7, 16, 40))),
]
