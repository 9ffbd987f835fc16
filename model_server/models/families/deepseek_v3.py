"""DeepSeek-V3, R1 and Kimi K2: latent attention; some dense layers, then routed and shared experts.

Kimi K2.5 and K2.6 also see, by MoonViT, in which a few frames see each other and become one.

Source: DeepSeek-AI 2024 (arXiv:2412.19437), Kimi Team 2026 (arXiv:2602.02276); names and config
keys are those of Hugging Face's `DeepseekV3ForCausalLM` and `Kimi_K25ForConditionalGeneration`.
The multi-token-prediction layer after the last may draft.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from model_server.checkpoints.media_part import FILE, PREPROCESSOR, VIDEO, VIDEO_FILE, VISION
from model_server.models.config_keys import ConfigKeys
from model_server.models.families.latent_recipe import LATENT, LATENT_OFF, latent_recipe
from model_server.models.families.sigmoid_experts import ROUTED, first_sparse, routed_ffw
from model_server.models.known_keys import KnownKeys, ignored, one_of
from model_server.models.media.image_processor import ImageProcessor
from model_server.models.media.media_recipe import (
    DecodedVideo,
    MediaRecipe,
    PreparedMedia,
    VideoRecipe,
    encoders,
)
from model_server.models.media.qwen.tower import (
    PartNames,
    TowerShape,
    cubic,
    joined,
    paired_rotation,
)
from model_server.models.media.qwen.tower_keys import MergerNames, layer_norms, merging, plain_ffw
from model_server.models.media.qwen.vision_encoder import PatchGrid, most_pixels, tower_recipe
from model_server.models.media.tower_layer import axial_theta
from model_server.models.media.vision_keys import vision_config_of
from model_server.models.recipe import Family, Recipe
from model_server.sharing.images.forms import BICUBIC, PaddedForm
from model_server.sharing.videos.process import FramesForm
from sax.errors import CheckpointError

# MoonViT, and how images and videos are prepared for it
_TOKENS = ("image_token_id", "media_placeholder_token_id")
# Keys of config.json beside those of the text model.
MOONVIT = (VISION, PREPROCESSOR, VIDEO, *_TOKENS, "video_token_id", "projection_hidden_size")
MOONVIT += ("projection_layer_norm_eps",)
# What published files call the keys of vision_config
_NAMES = {
    "init_pos_emb_height": "pos_emb_height",
    "init_pos_emb_time": "pos_emb_time",
    "init_pos_emb_width": "pos_emb_width",
    "mm_hidden_size": "projection_hidden_size",
    "projector_ln_eps": "projection_layer_norm_eps",
    "text_hidden_size": "out_hidden_size",
    "vt_hidden_size": "hidden_size",
    "vt_intermediate_size": "intermediate_size",
    "vt_num_attention_heads": "num_attention_heads",
    "vt_num_hidden_layers": "num_hidden_layers",
}
_KEYS = KnownKeys(
    "kimi_k25",
    (
        *_NAMES.values(),
        "hidden_act",
        "merge_kernel_size",
        "patch_size",
        "rope_parameters",
        "rope_theta",
    ),
    {
        **ignored("_attn_implementation", "initializer_range"),
        "merge_type": one_of("sd2_tpool"),
        "mm_projector_type": one_of("patchmerger"),
        "pos_emb_type": one_of("divided_fixed"),
        "projector_hidden_act": one_of("gelu"),
        "video_attn_type": one_of("spatial_temporal"),
    },
)
_MOONVIT_DEFAULTS = {
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "patch_size": 14,
    "pos_emb_height": 64,
    "pos_emb_time": 4,
}
_TOWER_NAMES = PartNames(
    positions="patch_embed.pos_emb.weight",
    layers="encoder.blocks",
    norms=("norm0", "norm1"),
    attention="",
    last="encoder.final_layernorm",
)
_MERGER = MergerNames(norm="pre_norm", up="proj.0", down="proj.2")
_EPSILON = 1e-5  # of every norm
_TOKEN_IDS = (163605, 163840)
_TOKEN, _VIDEO = "<|media_pad|>", "<|kimi_k25_video_placeholder|>"
_BEGIN, _CONTENT, _END = (f"<|media_{part}|>" for part in ("begin", "content", "end"))
_SIZE, _MOST_PATCHES, _MOST_FRAME = 512, 16384, 4096
_READ = ("max_patches", "merge_size", "patch_size", "size")
_VIDEO_READ = (*_READ, "do_sample_frames", "fps", "return_metadata", "temporal_patch_size")
_MOST = 2**20


def kimi_vision(keys: ConfigKeys, values: Mapping[str, Any], embed: int) -> MediaRecipe | None:
    """Return the recipe of the vision encoder; None: the checkpoint has none.

    embed: of the language model. Raises CheckpointError, InvalidRequest.
    """
    given = vision_config_of(keys)
    if given is None:
        return None
    own = {_NAMES.get(key, key): value for key, value in given.items()} | dict(given)
    tower = ConfigKeys(
        {key: own[key] for key in own if key not in _NAMES}, _KEYS, _MOONVIT_DEFAULTS
    )
    tower.only("out_hidden_size", embed)
    shape = _shape(tower, embed)
    for each in (keys, tower):
        each.only("projection_hidden_size", shape.embed)
        each.only("projection_layer_norm_eps", _EPSILON)
    grid, form = _images(keys, values, shape)
    grid = replace(grid, together=tower.whole("pos_emb_time"))
    token = next((key for key in _TOKENS if keys.get(key) is not None), _TOKENS[0])
    made = tower_recipe(shape, grid, form, embed, keys.whole(token, _TOKEN_IDS[0], least=0))
    return replace(made, video=_videos(keys, shape, grid))


def _shape(keys: ConfigKeys, embed: int) -> TowerShape:
    """Raises CheckpointError."""
    size, heads, patch = (
        keys.whole(key) for key in ("hidden_size", "num_attention_heads", "patch_size")
    )
    side, kernel = keys.whole("pos_emb_height"), keys.get("merge_kernel_size", [2, 2])
    keys.only("pos_emb_width", side)
    merge = kernel[0] if isinstance(kernel, list | tuple) and kernel else kernel
    if type(merge) is not int or merge < 1 or kernel not in ([merge] * 2, (merge, merge)):
        raise CheckpointError(
            f"vision_config has merge_kernel_size = {kernel!r}; give the same number twice"
        )
    if size % (4 * heads):
        raise CheckpointError(
            f"vision_config has hidden_size = {size} in {heads} heads; each head must have a "
            "multiple of 4 numbers, half of which are rotated by rows"
        )
    return TowerShape(
        layers=keys.whole("num_hidden_layers"),
        embed=size,
        heads=heads,
        out=embed,
        patch=(3, patch, patch),
        merge=merge,
        theta=axial_theta(keys, "kimi_k25"),
        patch_bias=True,
        sources=partial(joined, parts=("wqkv", "wo")),
        side=side,
        square=True,
        taps=cubic,
        merged_time=True,
        name="vision_tower",
        names=_TOWER_NAMES,
        norm=layer_norms(_EPSILON),
        ffw=plain_ffw(keys, size, keys.whole("intermediate_size"), "fc0", "fc1"),
        merger=merging(_MERGER, "mm_projector"),
        rotation=paired_rotation,
    )


def _images(
    keys: ConfigKeys, values: Mapping[str, Any], shape: TowerShape
) -> tuple[PatchGrid, PaddedForm]:
    """Return how images are cut and resized. Raises CheckpointError, InvalidRequest."""
    read = ImageProcessor(keys.get(PREPROCESSOR, {}), "Kimi_K25", _READ)
    patch, factor = shape.patch[-1], shape.patch[-1] * shape.merge
    read.equal({"patch_size": patch, "merge_size": shape.merge}, "vision_config's")
    own = read.whole("max_patches", _MOST_PATCHES, most=_MOST)
    pixels = most_pixels(values, own * patch**2, factor**2)
    form = PaddedForm(
        patch, factor, pixels // patch**2, _longest(read), resample=read.resample(BICUBIC)
    )
    grid = PatchGrid(
        patch=patch,
        merge=shape.merge,
        frames=1,
        scales=read.scales(0.5, 0.5),
        most=_most_padded(form),
        token=_TOKEN,
        merged_time=True,
        timed=True,
    )
    return grid, form


def _longest(read: ImageProcessor) -> int:
    """Return the most patches of a side. Raises CheckpointError."""
    return read.side("size", _SIZE, names=("max_height", "max_width"))


def _most_padded(form: PaddedForm) -> int:
    """Return the most patches of an image, once it is padded: whole squares."""
    each = form.factor // form.patch
    longest = -(-form.longest // each) * each
    long = min(longest, form.most)
    sides = form.most + (1 + each) * (long + form.most // long) + (1 + each) ** 2
    return min(-(-sides // each**2) * each**2, longest**2)


def _videos(keys: ConfigKeys, shape: TowerShape, grid: PatchGrid) -> VideoRecipe:
    """Return how videos are prepared. Raises CheckpointError."""
    own = keys.get(VIDEO)
    given, file = ({}, FILE) if own is None else (own, VIDEO_FILE)
    given = {key: value for key, value in given.items() if key != "video_processor_type"}
    read = ImageProcessor(given, "Kimi_K25", _VIDEO_READ, file=file)
    patch = grid.patch
    read.equal({"patch_size": patch, "merge_size": grid.merge}, "vision_config's")
    together = read.whole("temporal_patch_size", 4, most=grid.together)
    # As many as together are no more than an image, whose sides do not differ much.
    most = (math.isqrt(grid.most // together) - grid.merge - 1) ** 2
    frame = PaddedForm(
        patch,
        patch * grid.merge,
        max(1, min(most, read.whole("max_patches", _MOST_FRAME, most=_MOST))),
        _longest(read),
        resample=read.resample(BICUBIC),
    )
    cut = replace(grid, scales=read.scales(0.5, 0.5), together=together)
    return VideoRecipe(
        form=FramesForm(frame, read.number("fps", 2.0)),
        prepare=lambda video: cut.video(video, _told, _TOKEN),
        placeholder=_VIDEO,
        marked="",
        token=keys.whole("video_token_id", _TOKEN_IDS[1], least=0),
    )


def _told(part: PreparedMedia, video: DecodedVideo, group: list[int], at: int) -> PreparedMedia:
    """Return a part with a text that tells when its first frame is."""
    seconds = video.indices[group[0]] / video.rate
    clock = time.strftime("%H:%M:%S", time.gmtime(seconds))
    text = f"{clock}.{int(seconds % 1 * 1000):03d}{_BEGIN}video{_CONTENT}{part.text}{_END}"
    return part._replace(text=text)


# Of Kimi K2.5: what its images become in a prompt, which templates write
_UNUSED = ignored(
    "ignore_index",
    "use_unified_vision_chunk",
    "video_placeholder",
    "vision_end_token_id",
    "vision_start_token_id",
)
KEYS = KnownKeys(
    "deepseek_v3", (*LATENT, *ROUTED, *MOONVIT, "rope_interleave"), {**LATENT_OFF, **_UNUSED}
)
# Hugging Face's defaults.
_DEFAULTS = {
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "max_position_embeddings": 4096,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    recipe = latent_recipe(keys, values, first_sparse(keys), routed_ffw(keys))
    return replace(recipe, media=encoders(kimi_vision(keys, values, recipe.embed)))


FAMILY = Family(
    "deepseek_v3",
    ("deepseek_v3", "kimi_k2", "kimi_k25"),
    "DeepSeek-V3, DeepSeek-R1, Kimi K2, Kimi K2.5, Kimi K2.6",
    configure,
)
