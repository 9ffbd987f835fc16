"""GLM-5.3's image and video input: a tower with normed heads, and pictures on a canvas.

Names and config keys are those of Hugging Face's `Glm5NextForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from flax import nnx

from model_server.checkpoints.media_part import FILE, PREPROCESSOR, VIDEO, VIDEO_FILE, VISION
from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import ignored, one_of
from model_server.models.layers.activations import BoundedGate
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.layers import RmsNorm
from model_server.models.media.image_processor import ImageProcessor
from model_server.models.media.media_recipe import (
    DecodedVideo,
    MediaRecipe,
    PreparedMedia,
    VideoRecipe,
)
from model_server.models.media.qwen.mergers import ConvolvedMerger
from model_server.models.media.qwen.tower import TowerNames, TowerShape
from model_server.models.media.qwen.tower_keys import sizes_of, vision_keys
from model_server.models.media.qwen.vision_encoder import (
    PatchGrid,
    most_pixels,
    tower_recipe,
)
from model_server.models.media.vision_keys import CLIP_DEVIATION, CLIP_MEAN
from model_server.models.weights.weight import WeightForm
from model_server.sharing.images.forms import BICUBIC, CanvasForm
from model_server.sharing.videos.process import CanvasVideoForm
from sax.errors import CheckpointError

# Keys of config.json beside those of the text model.
OUTER = (VISION, PREPROCESSOR, VIDEO, "image_token_id", "video_token_id")
_VISION = ("attention_bias", "intermediate_size", "out_hidden_size", "rms_norm_eps")
_VISION += ("projection_intermediate_size", "swiglu_limit")
_DEFAULTS = {
    "attention_bias": True,
    "depth": 24,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_heads": 16,
    "out_hidden_size": 1536,
    "projection_intermediate_size": 10240,
    "rms_norm_eps": 1e-5,
    "swiglu_limit": 10.0,
}
_OTHERS = {**ignored("attention_dropout", "initializer_range"), "head_dim": one_of(None)}
_TOKEN, _VIDEO = "<|image|>", "<|video|>"
_START, _END = "<|begin_of_image|>", "<|end_of_image|>"
_TOKEN_ID, _MOST = 154854, 2**24
_BOUNDS = ("min_image_tokens", "max_image_tokens")
_READ = ("merge_size", "patch_expand_factor", "patch_size", "size", "temporal_patch_size")
_READ += ("default_to_square", *_BOUNDS)
_VIDEO_READ = (*_READ, "do_sample_frames", "fps", "max_duration", "max_frames", "max_image_size")
_VIDEO_READ += ("num_frames", "return_metadata")


def glm_vision(keys: ConfigKeys, values: Mapping[str, Any], embed: int) -> MediaRecipe | None:
    """Return the recipe of the vision encoder; None: the checkpoint has none.

    embed: of the language model. Raises CheckpointError, InvalidRequest.
    """
    if keys.get(VISION) is None:
        return None
    shape = _shape(keys)
    grid, form = _images(keys, values, shape)
    made = tower_recipe(shape, grid, form, embed, keys.whole("image_token_id", _TOKEN_ID, least=0))
    return replace(made, video=_videos(keys, shape, grid, made.token))


def _shape(keys: ConfigKeys) -> TowerShape:
    """Raises CheckpointError."""
    keys = vision_keys(keys, _VISION, _DEFAULTS, _OTHERS)
    keys.only("attention_bias", True)
    keys.only("hidden_act", "silu")
    embed, bound = keys.whole("hidden_size"), keys.number("swiglu_limit")
    if bound <= 0:
        raise CheckpointError(f"vision_config has swiglu_limit = {bound}; supported: above 0")
    gate, inner = BoundedGate(bound), keys.whole("projection_intermediate_size")
    return TowerShape(
        **sizes_of(keys, embed),
        out=keys.whole("out_hidden_size"),
        normed_heads=True,
        patch_bias=True,
        names=TowerNames(last="post_layernorm"),
        norm=partial(_norm, keys.number("rms_norm_eps")),
        ffw=_ffw(embed, keys.whole("intermediate_size"), gate),
        merger=lambda shape, name, form: ConvolvedMerger(shape, name, form, inner, gate),
    )


def _norm(epsilon: float, size: int, name: str) -> RmsNorm:
    return RmsNorm(size, (f"{name}.weight",), epsilon=epsilon)


def _ffw(embed: int, ffw: int, gate: BoundedGate) -> Callable[[int, str, WeightForm], nnx.Module]:
    def build(_: int, name: str, form: WeightForm) -> GatedFeedForward:
        return GatedFeedForward.hugging_face(
            embed, ffw, name, activation=gate, form=form, biased=True
        )

    return build


def _images(
    keys: ConfigKeys, values: Mapping[str, Any], shape: TowerShape
) -> tuple[PatchGrid, CanvasForm]:
    """Return how images are cut and resized. Raises CheckpointError, InvalidRequest."""
    read = ImageProcessor(_given(keys.get(PREPROCESSOR)), "Glm5Next", _READ)
    factor = _checked(read, shape)
    least, most = _bounds(read, 8000)
    most = most_pixels(values, most * factor**2, factor**2) // factor**2
    form = CanvasForm(factor, min(least, most), most, shape.frames, read.resample(BICUBIC))
    grid = PatchGrid(
        patch=shape.patch[-1],
        merge=shape.merge,
        frames=shape.frames,
        scales=read.scales(0.5, 0.5),
        most=most * shape.merge**2,
        token=_TOKEN,
    )
    return grid, form


def _given(own: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a file says, and what is usual where it says nothing."""
    said = {key: value for key, value in (own or {}).items() if value is not None}
    return {"image_mean": [*CLIP_MEAN], "image_std": [*CLIP_DEVIATION], **said}


def _checked(read: ImageProcessor, shape: TowerShape) -> int:
    """Return the pixels of a vector's side. Raises CheckpointError."""
    patch = shape.patch[-1]
    same = {"patch_size": patch, "merge_size": shape.merge, "temporal_patch_size": shape.frames}
    read.equal(same | {"patch_expand_factor": 1}, "vision_config's")
    return patch * shape.merge


def _bounds(read: ImageProcessor, most: int) -> tuple[int, int]:
    """Return the least and the most vectors. Raises CheckpointError."""
    found = (read.whole(_BOUNDS[0], 16, most=_MOST), read.whole(_BOUNDS[1], most, most=_MOST))
    if found[0] > found[1]:
        raise read.wrong(_BOUNDS[0], f"at most {_BOUNDS[1]}, {found[1]}")
    return found


def _videos(keys: ConfigKeys, shape: TowerShape, grid: PatchGrid, token: int) -> VideoRecipe:
    """Return how videos are prepared. Raises CheckpointError."""
    own = keys.get(VIDEO)
    given = _given(own)
    given.pop("video_processor_type", None)
    file = FILE if own is None else VIDEO_FILE
    read = ImageProcessor(given, "Glm5Next", _VIDEO_READ, file=file)
    factor = _checked(read, shape)
    least, most = _bounds(read, 240_000)
    canvas = CanvasForm(factor, least, most, shape.frames, read.resample(BICUBIC))
    form = CanvasVideoForm(
        canvas,
        frame_most=grid.most * grid.patch**2,
        rate=read.number("fps", 2.0),
        most_frames=read.whole("max_frames", 2048, most=_MOST),
        seconds=read.whole("max_duration", 0, least=0, most=_MOST),
    )
    cut = replace(grid, scales=read.scales(0.5, 0.5))
    return VideoRecipe(
        form=form,
        prepare=lambda video: cut.video(video, _told, _TOKEN),
        placeholder=_VIDEO,
        marked="",
        token=token,  # the same one stands for images and videos
    )


def _told(part: PreparedMedia, video: DecodedVideo, group: list[int], at: int) -> PreparedMedia:
    """Return a part with a text that tells when its first frame is."""
    seconds = video.indices[group[0]] / video.rate
    return part._replace(text=f"{_START}{part.text}{_END}{seconds:.1f} seconds")
