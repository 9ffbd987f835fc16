"""MiniMax-M3's image and video input: a tower rotated by frame, row and column, and two projectors.

Names and config keys are those of Hugging Face's `MiniMaxM3SparseForConditionalGeneration`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
from flax import nnx

from model_server.checkpoints.media_part import FILE, PREPROCESSOR, VIDEO, VIDEO_FILE
from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys, ignored, one_of
from model_server.models.layers.activations import activation_of
from model_server.models.layers.layers import Linear
from model_server.models.media.image_processor import ImageProcessor
from model_server.models.media.media_recipe import (
    DecodedVideo,
    MediaRecipe,
    PreparedMedia,
    VideoRecipe,
)
from model_server.models.media.qwen.tower import PartNames, TowerShape, moving_rotation, separate
from model_server.models.media.qwen.tower_keys import layer_norms, plain_ffw
from model_server.models.media.qwen.vision_encoder import (
    CLIP,
    PatchGrid,
    bounds_of,
    most_pixels,
    same_sizes,
    tower_recipe,
    without_nulls,
)
from model_server.models.media.tower_layer import axial_theta, dense
from model_server.models.media.vision_keys import VISION_KEYS, image_token_of, vision_config_of
from model_server.models.weights.weight import WeightForm
from model_server.sharing.images.forms import BICUBIC, MultiplesForm
from model_server.sharing.videos.process import VideoForm
from sax.errors import CheckpointError

_VIDEO_TOKENS = ("video_token_id", "video_token_index")
# Keys of config.json beside those of the text model.
OUTER = (*VISION_KEYS, VIDEO, *_VIDEO_TOKENS, "projector_hidden_size")
_KEYS = KnownKeys(
    "minimax_m3",
    (
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "layer_norm_eps",
        "num_attention_heads",
        "num_channels",
        "num_hidden_layers",
        "patch_size",
        "rope_parameters",
        "rope_theta",
        "spatial_merge_size",
        "temporal_patch_size",
    ),
    {
        # Of training, and what the processors say of images
        **ignored("attention_dropout", "dropout", "image_size", "img_token_compression_config"),
        **ignored("initializer_factor", "initializer_range", "projection_dim", "vocab_size"),
        **ignored("vision_segment_max_frames"),
        "position_embedding_type": one_of("rope"),
        "rope_mode": one_of("3d"),
    },
)
_DEFAULTS = {
    "hidden_act": "gelu",
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "layer_norm_eps": 1e-5,
    "num_attention_heads": 16,
    "num_hidden_layers": 32,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
_NAMES = PartNames(
    kernel="embeddings.patch_embedding",
    layers="encoder.layers",
    norms=("layer_norm1", "layer_norm2"),
    attention=".self_attn",
    first="pre_layrnorm",  # so spelled
)
_PARTS = ("q_proj", "k_proj", "v_proj", "out_proj")
_IMAGE, _VIDEO = "]<]image[>[", "]<]video[>["
_START, _END = "]<]start of image[>[", "]<]end of image[>["
_TOKEN_IDS = (200025, 200026)
_SQUARE = 28 * 28
_SIZE = {"shortest_edge": 4 * _SQUARE, "longest_edge": 451584}
_UNREAD_SIZE = [672, 672]  # of published files, in place of which the reference has the usual one
_READ = ("max_pixels", "merge_size", "min_pixels", "patch_size", "size", "temporal_patch_size")
_SEGMENT = "vision_segment_max_frames"
_VIDEO_READ = (*_READ, _SEGMENT, "do_sample_frames", "fps", "max_frames", "min_frames")
_VIDEO_READ += ("return_metadata", "total_pixels")
_MOST = 2**31
_GELU = activation_of("gelu")


class TwofoldMerger(nnx.Module):
    """Two matrices for each patch, then two for the squares of what they make."""

    def __init__(self, shape: TowerShape, _: str, form: WeightForm, inner: int) -> None:
        """inner: numbers between both."""
        self.each = shape.merge**2
        wide = shape.out * self.each
        self.up = _linear("multi_modal_projector.linear_1", inner, shape.embed, form)
        self.down = _linear("multi_modal_projector.linear_2", shape.out, inner, form)
        self.merge_up = _linear("patch_merge_mlp.linear_1", inner, wide, form)
        self.merge_down = _linear("patch_merge_mlp.linear_2", shape.out, inner, form)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f32[N, D] to f32[N / merge^2, out]."""
        seen = self.down(_GELU(self.up(x)))
        squares = seen.reshape(-1, self.each * seen.shape[-1])
        return self.merge_down(_GELU(self.merge_up(squares)))


def _linear(name: str, outputs: int, inputs: int, form: WeightForm) -> Linear:
    kernel, bias = dense(name)
    axes = ("ffw", "embed") if name.endswith("_1") else ("embed", "ffw")
    return Linear(outputs, inputs, axes, kernel, form=form, bias=bias)


def minimax_vision(keys: ConfigKeys, values: Mapping[str, Any], embed: int) -> MediaRecipe | None:
    """Return the recipe of the vision encoder; None: the checkpoint has none.

    embed: of the language model. Raises CheckpointError, InvalidRequest.
    """
    given = vision_config_of(keys)
    if given is None:
        return None
    shape = _shape(ConfigKeys(given, _KEYS, _DEFAULTS), embed, keys)
    video = _video_processor(keys, shape)
    grid, form = _images(keys, values, shape, video)
    made = tower_recipe(shape, grid, form, embed, image_token_of(keys, _TOKEN_IDS[0]))
    return replace(made, video=_videos(keys, grid, video))


def _shape(keys: ConfigKeys, embed: int, outer: ConfigKeys) -> TowerShape:
    """Raises CheckpointError."""
    keys.only("num_channels", 3)
    size, heads, patch = (
        keys.whole(key) for key in ("hidden_size", "num_attention_heads", "patch_size")
    )
    if size % heads or size // heads < 6:
        raise CheckpointError(
            f"vision_config has hidden_size = {size} in {heads} heads; each head must have as many "
            "numbers, at least 6, of which a third is rotated by frames, rows and columns each"
        )
    inner = outer.whole("projector_hidden_size", 6144)
    return TowerShape(
        layers=keys.whole("num_hidden_layers"),
        embed=size,
        heads=heads,
        out=embed,
        patch=(3, keys.whole("temporal_patch_size"), patch, patch),
        merge=keys.whole("spatial_merge_size"),
        theta=axial_theta(keys, "minimax_m3"),
        sources=partial(separate, parts=_PARTS),
        name="vision_tower",
        names=_NAMES,
        norm=layer_norms(keys.number("layer_norm_eps")),
        ffw=plain_ffw(keys, size, keys.whole("intermediate_size"), "fc1", "fc2"),
        merger=partial(TwofoldMerger, inner=inner),
        rotation=moving_rotation,
    )


def _images(
    keys: ConfigKeys, values: Mapping[str, Any], shape: TowerShape, video: ImageProcessor
) -> tuple[PatchGrid, MultiplesForm]:
    """Return how images are cut and resized. Raises CheckpointError, InvalidRequest."""
    given = {**CLIP, "size": _SIZE, **without_nulls(keys.get(PREPROCESSOR, {}))}
    if given["size"] == _UNREAD_SIZE:
        given["size"] = _SIZE
    read = ImageProcessor(given, "MiniMaxM3VL", _READ)
    read.equal(same_sizes(shape), "vision_config's")
    factor, together = shape.patch[-1] * shape.merge, _together(video)
    least, most = bounds_of(read, given)
    longest = max(most, together * _frame_bounds(video)[1])
    pixels = most_pixels(values, longest, factor**2)
    grid = PatchGrid(
        patch=shape.patch[-1],
        merge=shape.merge,
        frames=shape.frames,
        scales=read.scales(0.5, 0.5),
        most=pixels // shape.patch[-1] ** 2,
        token=_IMAGE,
        marks=(_START, _END),
        together=together,
        timed=True,
    )
    most = min(most, pixels)
    return grid, MultiplesForm(factor, min(least, most), most, read.resample(BICUBIC))


def _video_processor(keys: ConfigKeys, shape: TowerShape) -> ImageProcessor:
    """Return the file of videos. Raises CheckpointError."""
    own: Mapping[str, Any] = keys.get(VIDEO, {})
    usual = {key: CLIP[key] for key in ("image_mean", "image_std")}
    given = {**usual, **without_nulls(own)}
    given.pop("video_processor_type", None)
    file = VIDEO_FILE if VIDEO in keys.all else FILE
    read = ImageProcessor(given, "MiniMaxM3VL", _VIDEO_READ, file=file)
    if own.get(_SEGMENT, 4) is None:
        raise read.wrong(_SEGMENT, "a number of frames that see each other")
    read.equal(same_sizes(shape), "vision_config's")
    return read


def _together(read: ImageProcessor) -> int:
    return read.whole(_SEGMENT, 4, most=64)


def _frame_bounds(read: ImageProcessor) -> tuple[int, int]:
    """Return the least and the most pixels of a frame. Raises CheckpointError."""
    found = read.whole("min_pixels", 4 * _SQUARE, most=_MOST)
    most = read.whole("max_pixels", 768 * _SQUARE, most=_MOST)
    if found > most:
        raise read.wrong("min_pixels", f"at most max_pixels, {most}")
    return found, most


def _videos(keys: ConfigKeys, grid: PatchGrid, read: ImageProcessor) -> VideoRecipe:
    """Return how videos are prepared.

    The reference's processor takes all frames as they are; which ones and of which size its file
    says, by the rules of Qwen's processor.  Raises CheckpointError.
    """
    factor, (least, most) = grid.patch * grid.merge, _frame_bounds(read)
    total = read.whole("total_pixels", int(64000 * _SQUARE * 0.9), most=_MOST)
    form = VideoForm(
        factor=factor,
        least=least,
        most=most,
        frame_most=grid.most // grid.together * grid.patch**2,
        together=False,
        temporal=grid.frames,
        rate=read.number("fps", 1.0),
        least_frames=read.whole("min_frames", 4, most=_MOST),
        most_frames=read.whole("max_frames", 768, least=grid.frames, most=_MOST),
        share=math.ceil(total / 0.9 / factor**2),
        resample=read.resample(BICUBIC),
    )
    cut = replace(grid, scales=read.scales(0.5, 0.5))
    token = next((key for key in _VIDEO_TOKENS if keys.get(key) is not None), _VIDEO_TOKENS[0])
    return VideoRecipe(
        form=form,
        prepare=lambda video: cut.video(video, partial(_told, grid.frames), _VIDEO),
        placeholder=_VIDEO,
        marked="",
        token=keys.whole(token, _TOKEN_IDS[1], least=0),
    )


def _told(
    frames: int, part: PreparedMedia, video: DecodedVideo, group: list[int], at: int
) -> PreparedMedia:
    """Return a part with texts that tell when each of its frames is; frames: of a vector."""
    assert part.grid is not None, "frames have one"
    tokens = _VIDEO * (part.rows // part.grid[0])
    times = (video.indices[number] / video.rate for number in group[::frames])
    texts = (f"]<]{time:.1f} seconds[>[{_START}{tokens}{_END}" for time in times)
    return part._replace(text="".join(texts))
