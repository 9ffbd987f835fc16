"""Qwen's models with images and videos: Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.tools.golden import common
from tests.tools.golden.common import Shapes
from tests.tools.golden.families.recurrent import HASHES, experts_together
from tests.tools.golden.media.case import FOLDER, MediaCase, Reader, Seen, with_vision

START, END, TOKEN, VIDEO = 264, 265, 266, 267  # behind the tokens of `tiny_folder`


def qwen2_vl(vision: dict[str, Any]) -> dict[str, Any]:
    """As published: the keys of both parts beside each other."""
    return with_vision("qwen2_vl", vision)


def qwen2_5_vl(vision: dict[str, Any]) -> dict[str, Any]:
    """As published: the keys of both parts beside each other."""
    return with_vision("qwen2_5_vl", vision)


def qwen3_vl(vision: dict[str, Any]) -> dict[str, Any]:
    """As published: each part apart."""
    return with_vision("qwen3_vl", vision)


def preprocessor(**own: Any) -> dict[str, Any]:
    """As Qwen2.5-VL is published."""
    return common.read_json(FOLDER / "qwen2_5_vl" / "preprocessor_config.json") | own


def later_preprocessor(**own: Any) -> dict[str, Any]:
    """As Qwen3-VL is published."""
    return common.read_json(FOLDER / "qwen3_vl" / "preprocessor_config.json") | own


def see(case: MediaCase, images: Sequence[np.ndarray]) -> Seen:
    import torch
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    given = {k: v for k, v in case.preprocessor.items() if k != "image_processor_type"}
    process = Qwen2VLImageProcessorPil.from_dict(given)
    each = [process([image], return_tensors="pt") for image in images]
    grids = torch.cat([one["image_grid_thw"] for one in each])
    counts = (grids.prod(-1) // process.merge_size**2).tolist()
    rows = [[START, *[TOKEN] * count, END] for count in counts]
    pixels = [one["pixel_values"] for one in each]
    inputs = {"pixel_values": torch.cat(pixels), "image_grid_thw": grids}
    return Seen(rows, inputs, [one.numpy() for one in pixels])


def vectors(model: Any, seen: Seen, prompt: Sequence[int]) -> Sequence[Any]:
    """Vectors of each image: those of the first layer's input, then those of each level."""
    import torch

    found = model.get_image_features(**seen.inputs)
    levels = getattr(found, "deepstack_features", None) or []
    return [torch.cat(parts, dim=1) for parts in zip(found.pooler_output, *levels, strict=True)]


RATE = 3.0  # frames a second of every video


def video_processor(case: MediaCase) -> Any:
    from transformers import Qwen2VLVideoProcessor, Qwen3VLVideoProcessor

    given = case.video_preprocessor
    kinds = {"Qwen2VLVideoProcessor": Qwen2VLVideoProcessor}
    kind = kinds.get(given["video_processor_type"], Qwen3VLVideoProcessor)
    return kind(**{key: value for key, value in given.items() if not key.startswith("processor")})


def watch(case: MediaCase, videos: Sequence[np.ndarray]) -> Seen:
    """Times stand as three tokens of a text before each pair of frames, of Qwen3-VL."""
    import torch

    process = video_processor(case)
    each = [
        process(
            [torch.from_numpy(video).permute(0, 3, 1, 2)],
            video_metadata=[{"fps": RATE, "total_num_frames": len(video)}],
            return_metadata=True,
            return_tensors="pt",
        )
        for video in videos
    ]
    grids = torch.cat([one["video_grid_thw"] for one in each])
    inputs = {"pixel_values_videos": torch.cat([one["pixel_values_videos"] for one in each])}
    inputs["video_grid_thw"] = grids
    rates = [one["video_metadata"][0].sampled_fps for one in each]
    if "2_5" in case.name:
        inputs["second_per_grid_ts"] = torch.tensor([2 / rate for rate in rates])
    told = process.merge_size**2
    rows = [
        _apart(*grid, told)
        if "qwen3" in case.name
        else [START, *[VIDEO] * (math.prod(grid) // told), END]
        for grid in grids.tolist()
    ]
    pieces = [one["pixel_values_videos"].numpy() for one in each]
    return Seen(rows, inputs, pieces, _choices(process, case))


def _apart(frames: int, height: int, width: int, each: int) -> list[int]:
    one = [START, *[VIDEO] * (height * width // each), END]
    return [token for n in range(frames) for token in (10 + n, 20, 30, *one)]


LENGTHS = [(2, 3.0), (5, 30.0), (9, 3.0), (33, 10.0), (75, 29.97), (100, 24.0), (301, 25.0)]
LENGTHS += [(1000, 23.976), (2000, 30.0), (90_000, 25.0)]
SIZES = [(4, 16, 24), (6, 100, 30), (7, 9, 200), (4, 480, 640), (64, 240, 320), (3, 5, 5)]


def _choices(process: Any, case: MediaCase) -> dict[str, np.ndarray]:
    """Frames that the processor takes of videos of some lengths, padded with -1; and the sizes,
    height and width, that it gives to some frames."""
    from transformers.models.qwen2_vl import video_processing_qwen2_vl as second
    from transformers.models.qwen3_vl import video_processing_qwen3_vl as third
    from transformers.video_utils import VideoMetadata

    found = list[list[int]]()
    for total, rate in LENGTHS:
        told = VideoMetadata(total_num_frames=total, fps=rate)
        found.append([int(each) for each in process.sample_frames(told)])
    padded = np.full((len(found), max(map(len, found))), -1)
    for row, each in zip(padded, found, strict=True):
        row[: len(each)] = each
    least, most = process.size["shortest_edge"], process.size["longest_edge"]
    bounds = {"factor": process.patch_size * process.merge_size}
    bounds |= {"min_pixels": least, "max_pixels": most}
    sizes = [
        third.smart_resize(*size, **bounds)
        if "qwen3" in case.name
        else second.smart_resize(*size[1:], **bounds)
        for size in SIZES
    ]
    return {"chosen": padded.astype(np.int32), "sizes": np.asarray(sizes, np.int32)}


def watched(model: Any, seen: Seen, prompt: Sequence[int]) -> Sequence[Any]:
    """Vectors of each video, as `vectors`."""
    import torch

    pixels, grids = seen.inputs["pixel_values_videos"], seen.inputs["video_grid_thw"]
    found = model.get_video_features(pixels, grids)
    levels = getattr(found, "deepstack_features", None) or []
    counts = [len(each) for each in found.pooler_output]
    together = torch.cat([torch.cat(list(found.pooler_output)), *map(_joined, levels)], dim=1)
    return list(torch.split(together, counts))


def _joined(level: Any) -> Any:
    import torch

    return level if isinstance(level, torch.Tensor) else torch.cat(list(level))


def flat_names(name: str) -> str:
    """As published with Qwen2-VL: the text model without a prefix, the tower beside it."""
    return name.replace("model.language_model.", "model.").replace("model.visual.", "visual.")


def turned_experts(shapes: Shapes) -> Shapes:
    """As published: the matrices of all experts as [in, out]."""
    both = (".experts.gate_up_proj", ".experts.down_proj")
    return {
        name: (shape[0], shape[2], shape[1]) if name.endswith(both) else shape
        for name, shape in shapes.items()
    }


WATCHING = Reader(watch, watched, first=(), growth=4, kinds=("mm_token_type_ids", VIDEO), kind=2)
QWEN = Reader(see, vectors, first=(), growth=4, kinds=("mm_token_type_ids", TOKEN))
THREE = ((37, 61), (16, 24), (90, 20))
# Of frames that keep their size: Pillow and torchvision do not resize alike.
VIDEOS = ((9, 24, 32), (7, 16, 40))

CASES = [
    MediaCase("qwen2_vl_video", WATCHING, videos=VIDEOS, published=flat_names),
    MediaCase(
        "qwen2_5_vl_video",
        WATCHING,
        videos=VIDEOS,
        published=flat_names,
        without={"time": {"vision_config.tokens_per_second": 50}},
    ),
    MediaCase("qwen3_vl_video", WATCHING, videos=VIDEOS),
    MediaCase(
        "qwen2_vl",
        QWEN,
        images=THREE,
        published=flat_names,
        without={
            "sections": {"rope_scaling.mrope_section": [3, 2, 1]},
            "quick GELU": {"vision_config.hidden_act": "relu"},
        },
    ),
    # Windows of 4 vectors, some cut at the edges.
    MediaCase(
        "qwen2_5_vl",
        QWEN,
        images=THREE,
        published=flat_names,
        without={
            "windows": {"vision_config.fullatt_block_indexes": [0, 1, 2]},
            "sections": {"rope_scaling.mrope_section": [3, 2, 1]},
        },
    ),
    # Windows of 9 vectors, 5 heads, tied, one key-value head.
    MediaCase(
        "qwen2_5_vl_wide",
        QWEN,
        images=((30, 50), (6, 8), (12, 80), (24, 24)),
        published=flat_names,
    ),
    MediaCase(
        "qwen3_vl",
        QWEN,
        images=THREE,
        without={
            "levels": {"vision_config.deepstack_visual_indexes": [1, 2]},
            "sections": {"text_config.rope_scaling": {"mrope_section": [5, 0, 0]}},
        },
    ),
    # Squares of 9 patches, 2 heads, one level, tied.
    MediaCase("qwen3_vl_three", QWEN, images=((30, 44), (6, 6), (9, 60))),
    MediaCase(
        "qwen3_vl_moe",
        QWEN,
        images=THREE[:2],
        stored=turned_experts,
        without={
            "levels": {"vision_config.deepstack_visual_indexes": [1, 2]},
            "experts": {"text_config.num_experts_per_tok": 1},
        },
    ),
    # As transformers saves it, the matrices of experts as [out, in].
    MediaCase("qwen3_vl_moe_saved", QWEN, images=((20, 20),)),
    MediaCase(
        "qwen3_5",
        QWEN,
        images=THREE[:2],
        without={"sections": {"text_config.rope_parameters.mrope_section": [6, 0, 0]}},
    ),
    MediaCase("qwen3_5_moe", QWEN, images=((30, 50),), stored=experts_together),
    MediaCase(
        "qwen4_exp",
        QWEN,
        images=THREE[:2],
        without={
            "sections": {"text_config.rope_parameters.mrope_section": [4, 0, 0]},
            "blocks": {"text_config.indexer_budget": 128},
        },
        left_out=HASHES,
    ),
]
