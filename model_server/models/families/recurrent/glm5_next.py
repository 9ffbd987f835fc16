"""GLM-5.3 Flash: Kimi's delta networks, latent attention to chosen pools, streams that mix.

Its tower has normed heads, and pictures lie on a canvas. No token rotates. The layer that drafts is
skipped: the reference defines none.
Source: Z.ai 2026, "GLM-5.3 Flash"; names and config keys are those of Hugging Face's
`Glm5NextForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
from flax import nnx

from model_server.checkpoints.media_part import FILE, PREPROCESSOR, VIDEO, VIDEO_FILE, VISION
from model_server.kernels.pages import CacheShape, HeadShape
from model_server.models.config_keys import ConfigKeys, kinds_of_layers
from model_server.models.families.decoder_recipe import norm_of
from model_server.models.families.experts.mlp_layers import listed_sparse
from model_server.models.families.indexed.deepseek_v32 import choosing_cache
from model_server.models.families.indexed.glm_moe_dsa import SHARING, choosers_of, choosing_layers
from model_server.models.families.indexed.hy_v4 import (
    MixingConnection,
    StreamsDecoder,
    StreamsLayer,
    bounded_gate,
    stream_weights,
)
from model_server.models.families.indexed.indexed_attention import (
    IndexedLatentAttention,
    IndexerShape,
)
from model_server.models.families.latent_recipe import LATENT, LATENT_OFF, latent_recipe
from model_server.models.families.recurrent.kimi_linear import (
    LINEAR,
    LINEAR_NAMES,
    delta_shape,
    flat_linear,
    low_rank_delta_net,
    states_of,
)
from model_server.models.families.sigmoid_experts import ROUTED, routed_ffw
from model_server.models.known_keys import KnownKeys, ignored, one_of
from model_server.models.layers.activations import BoundedGate
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.latent_attention import LatentShape
from model_server.models.layers.layers import sum_in_order
from model_server.models.media.image_processor import ImageProcessor
from model_server.models.media.media_recipe import (
    DecodedVideo,
    MediaRecipe,
    PreparedMedia,
    VideoRecipe,
    encoders,
)
from model_server.models.media.qwen.tower import PartNames, TowerShape
from model_server.models.media.qwen.tower_keys import (
    ConvolvedMerger,
    rms_norms,
    sizes_of,
    vision_keys,
)
from model_server.models.media.qwen.vision_encoder import (
    OUTER,
    PatchGrid,
    most_pixels,
    tower_recipe,
)
from model_server.models.media.vision_keys import CLIP_DEVIATION, CLIP_MEAN
from model_server.models.recipe import Family, Recipe
from model_server.models.weights.weight import WeightForm
from model_server.sharing.images.forms import BICUBIC, CanvasForm
from model_server.sharing.videos.process import CanvasVideoForm
from sax.errors import CheckpointError

# Its tower, and how images and videos are prepared for it
_VISION = ("attention_bias", "intermediate_size", "out_hidden_size", "rms_norm_eps")
_VISION += ("projection_intermediate_size", "swiglu_limit")
_SEEN_DEFAULTS = {
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
    shape = _seen_shape(keys)
    grid, form = _images(keys, values, shape)
    made = tower_recipe(shape, grid, form, embed, keys.whole("image_token_id", _TOKEN_ID, least=0))
    return replace(made, video=_videos(keys, shape, grid, made.token))


def _seen_shape(keys: ConfigKeys) -> TowerShape:
    """Raises CheckpointError."""
    keys = vision_keys(keys, _VISION, _SEEN_DEFAULTS, _OTHERS)
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
        names=PartNames(last="post_layernorm"),
        norm=rms_norms(keys.number("rms_norm_eps")),
        ffw=_ffw(embed, keys.whole("intermediate_size"), gate),
        merger=lambda shape, name, form: ConvolvedMerger(shape, name, form, inner, gate),
    )


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


class MeanNorm(nnx.Module):
    """The last norm, of the mean of the streams."""

    def __init__(self, streams: int, norm: nnx.Module) -> None:
        self.streams, self.norm = streams, norm

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f32[T, N D] to f32[T, D]."""
        streams = x.reshape(len(x), self.streams, -1)
        return self.norm(sum_in_order(streams, axis=1) / self.streams)


# What older files call these keys
_NAMES = {"num_local_experts": "n_routed_experts"}
_LINEAR_NAMES = {**LINEAR_NAMES, "gate_lower_bound": "linear_lower_bound"}
KEYS = KnownKeys(
    "glm5_next",
    (
        *(key for key in LATENT if not key.startswith("rope_")),
        *ROUTED,
        *SHARING,
        *OUTER,
        LINEAR,
        "hc_eps",
        "hc_mult",
        "hc_sinkhorn_iters",
        "index_head_dim",
        "index_kpool",
        "index_n_heads",
        "index_topk",
        "layer_types",
        "linear_conv_kernel_dim",
        "linear_head_dim",
        "linear_lower_bound",
        "linear_num_heads",
        "mlp_layer_types",
        "swiglu_limit",
    ),
    {
        **LATENT_OFF,
        **ignored("rope_parameters", "rope_scaling", "rope_theta", "rope_interleave"),
        **ignored("image_end_token_id", "image_start_token_id"),
        **ignored("video_end_token_id", "video_start_token_id"),
        "mhc": one_of(True),
        "mla_use_nope": one_of(True),
        # Without it the first queries would attend to nothing
        "index_kpool_always_select_tail": one_of(True),
    },
)
_DEFAULTS = {
    "first_k_dense_replace": 3,
    "hc_eps": 1e-6,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "index_head_dim": 128,
    "index_kpool": 16,
    "index_n_heads": 32,
    "index_topk": 2048,
    "kv_lora_rank": 512,
    "linear_conv_kernel_dim": 4,
    "linear_head_dim": 128,
    "linear_lower_bound": -5.0,
    "linear_num_heads": 64,
    "max_position_embeddings": 1048576,
    "n_group": 1,
    "n_routed_experts": 288,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 256,
    "qk_rope_head_dim": 0,
    "rms_norm_eps": 1e-5,
    "swiglu_limit": 10.0,
    "topk_group": 1,
    "v_head_dim": 256,
}
_KINDS = {"linear_attention": False, "full_attention": True, "indexed_attention": True}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(_flat(config or {}), KEYS, _DEFAULTS)
    keys.only("hidden_act", "silu")
    attends, shape, indexer = _attending(keys), _shape(keys), _indexer(keys)
    chooses, gate, streams = _choosing(keys, attends), bounded_gate(keys), keys.whole("hc_mult")
    delta = delta_shape(keys, keys.whole("linear_num_heads"), keys.whole("linear_head_dim"))
    least = keys.number_or_none("linear_lower_bound")
    fading = partial(low_rank_delta_net, delta, (delta.key_heads,), least)
    recipe = latent_recipe(
        keys,
        values,
        listed_sparse(keys),
        routed_ffw(keys, gate=gate),
        shape=shape,
        attentions=[
            partial(IndexedLatentAttention, indexer, chooses=own) if its else fading
            for its, own in zip(attends, chooses, strict=True)
        ],
        decoder_kind=partial(StreamsDecoder, streams=streams),
        rotates=False,
        unused=(f"model.layers.{len(attends)}.",),
        states=states_of(delta, attends),
        around=lambda layer, prefix: StreamsLayer(
            layer, *(_connection(keys, f"{prefix}.hc_{half}") for half in ("attn", "ffn"))
        ),
        final_norm=lambda name: MeanNorm(streams, norm_of(keys, name)),
        gate=gate,
    )
    narrow = HeadShape(1, shape.latent, 0)
    others = tuple(None if own else narrow for own in chooses) if not all(chooses) else ()
    cached = choosing_cache(keys, indexer, others, shape)

    def cache(shards: int) -> CacheShape:
        return replace(cached(shards), plain=True, states=recipe.cache(shards).states)

    return replace(
        recipe,
        cache=cache,
        choosers=choosers_of(chooses),
        carried=streams * shape.embed,
        media=encoders(glm_vision(keys, values, shape.embed)),
    )


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json by later names. Raises CheckpointError."""
    renamed = {_NAMES.get(key, key): value for key, value in config.items()}
    given = flat_linear(renamed, "glm5_next", _LINEAR_NAMES, "safe_gate")
    linear = given.get(LINEAR) or {}
    bounded = "gate_lower_bound" in linear and linear.get("safe_gate", True)
    if bounded and given["linear_lower_bound"] is None:
        given["linear_lower_bound"] = _DEFAULTS["linear_lower_bound"]
    return given


def _attending(keys: ConfigKeys) -> list[bool]:
    """One flag per layer: True if it attends. Raises CheckpointError.

    Lists of layers that `linear_attn_config` may have, counted from 0 or 1, must say the same: the
    reference reads none.
    """
    layers = range(keys.whole("num_hidden_layers"))
    found = kinds_of_layers(keys, _KINDS) or [index % 4 == 3 for index in layers]
    for name, its in (("full_attn_layers", True), ("kda_layers", False)):
        given = (keys.get(LINEAR) or {}).get(name)
        wanted = [index for index in layers if found[index] is its]
        if given not in (None, wanted, [index + 1 for index in wanted]):
            raise CheckpointError(
                f"config.json has {name} = {given!r} in {LINEAR}; by its layer_types the "
                f"{keys.family} family computes {wanted}"
            )
    return found


def _choosing(keys: ConfigKeys, attends: Sequence[bool]) -> list[bool]:
    """One flag per layer: False if it takes the choice of the layer before. Raises CheckpointError.

    Delta networks pass no choice on, so that what indexer_types says of them means nothing.
    """
    every = choosing_layers(keys)
    chooses = [own or not its for own, its in zip(every, attends, strict=True)]
    for index, own in enumerate(chooses):
        if not own and not (attends[index - 1] and chooses[index - 1]):
            raise CheckpointError(
                f"config.json lets layer {index} share a choice of tokens, and the layer before it "
                f"makes none: the {keys.family} family supports shared layers right behind one "
                "that attends and has an indexer"
            )
    return chooses


def _shape(keys: ConfigKeys) -> LatentShape:
    """Raises CheckpointError."""
    keys.only("qk_rope_head_dim", 0)
    size = keys.whole("qk_nope_head_dim")
    return LatentShape(
        embed=keys.whole("hidden_size"),
        heads=keys.whole("num_attention_heads"),
        plain_dim=size,
        rotated_dim=0,
        value_dim=keys.whole("v_head_dim"),
        latent=keys.whole("kv_lora_rank"),
        query_latent=keys.whole("q_lora_rank"),
        scale=size**-0.5,
        biased=keys.flag("attention_bias"),
        epsilon=keys.number("rms_norm_eps"),
    )


def _indexer(keys: ConfigKeys) -> IndexerShape:
    """Raises CheckpointError."""
    most, pool = keys.whole("index_topk"), keys.whole("index_kpool")
    if most % pool:
        raise CheckpointError(
            f"config.json has index_topk = {most} and index_kpool = {pool}; the {keys.family} "
            "family needs a whole number of pools"
        )
    return IndexerShape(keys.whole("index_n_heads"), keys.whole("index_head_dim"), most, pool=pool)


def _connection(keys: ConfigKeys, name: str) -> MixingConnection:
    shares, rounds = (1, 1, keys.whole("hc_mult")), keys.whole("hc_sinkhorn_iters")
    return stream_weights(MixingConnection, keys, shares, name, rounds=rounds)


FAMILY = Family(
    "glm5_next",
    ("glm5_next_text", "glm5_next"),
    "GLM-5.3 Flash",
    configure,
    own_types_only=True,
)
