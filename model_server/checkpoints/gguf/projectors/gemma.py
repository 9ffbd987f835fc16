"""The encoders of Gemma: of pictures those of Gemma 3, 3n and 4, of sounds those of 3n and 4.

The blocks of Gemma 3n's MobileNet-V5 are told by their shapes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from model_server.checkpoints.gguf.architecture import Config
from model_server.checkpoints.gguf.facts import Facts
from model_server.checkpoints.gguf.projectors.projector import (
    HEARING,
    GgufProjector,
    Parts,
    bounded,
    filters,
    flat,
    less_one,
    undone_bounds,
)
from model_server.checkpoints.media_part import FEATURES
from sax.errors import CheckpointError

# --- Gemma 3


def _gemma3_outer(facts: Facts, vision: dict[str, Any]) -> dict[str, Any]:
    side = vision["image_size"] // vision["patch_size"]
    scale = facts.whole("vision.projector.scale_factor", 4)
    return {"mm_tokens_per_image": (side // scale) ** 2}


GEMMA3 = GgufProjector(
    texts={"gemma3_text": "gemma3_text"},
    token="<image_soft_token>",
    tensors={
        "vision_tower.embeddings.patch_embedding": ("v.patch_embd",),
        "vision_tower.embeddings.position_embedding": ("v.position_embd",),
        "vision_tower.post_layernorm": ("v.post_ln",),
        "multi_modal_projector.mm_soft_emb_norm": ("mm.soft_emb_norm",),
    },
    whole={
        "multi_modal_projector.mm_input_projection_weight": ("mm.input_projection.weight",),
    },
    layers="vision_tower.encoder.layers",
    layer_tensors={
        "layer_norm1": ("ln1",),
        "layer_norm2": ("ln2",),
        "self_attn.q_proj": ("attn_q",),
        "self_attn.k_proj": ("attn_k",),
        "self_attn.v_proj": ("attn_v",),
        "self_attn.out_proj": ("attn_out",),
        "mlp.fc1": ("ffn_up",),
        "mlp.fc2": ("ffn_down",),
    },
    encoder=lambda facts, sizes: sizes | {"hidden_act": "gelu_pytorch_tanh"},
    outer=_gemma3_outer,
    undone={"multi_modal_projector.mm_soft_emb_norm": less_one},
)

# --- Gemma 3n: MobileNet-V5
#
# Strides, windows, caps and factors are the published models': there are no keys. The encoders'
# vocabularies begin with the tokens that end a picture and a sound.

_TEXTS_3N = {"gemma3n_text": "gemma3n_text"}
_PARTS = {
    "embedding": "embedding",
    "embedding_projection": "input_projection",
    "hard_embedding_norm": "hard_emb_norm",
    "soft_embedding_norm": "soft_emb_norm",
}

_TOWER = "vision_tower.timm_model"
_BLOCK = re.compile(r"v\.blk\.(\d{1,3})\.(\d{1,3})\.(.+)")
_FEWER = "attn.key.down_conv.weight"  # of blocks that read fewer keys than there are places
_SIDES = ("height", "width")
_Shapes = Mapping[str, tuple[int, ...]]  # of a block's tensors


def _gemma3nv(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    return {
        "hidden_size": sizes["hidden_size"],
        "model_args": {
            "block_args": _stages(facts),
            "msfa_output_resolution": _side(sizes),
        },
        "rms_norm_eps": sizes["layer_norm_eps"],
        "vocab_offset": sizes["eoi_token_id"],
        "vocab_size": facts.rows("mm.embedding.weight"),
    }


def _side(sizes: Config) -> int:
    """Return the vectors of a side; the file has pixels by vectors of a picture."""
    count = sizes["image_size"] // sizes["patch_size"]
    if (side := math.isqrt(count)) ** 2 != count:
        raise CheckpointError(
            f"its metadata says {sizes['image_size']} pixels and {sizes['patch_size']} of them for "
            f"each vector of a picture: {count} vectors are no square"
        )
    return side


def _stages(facts: Facts) -> list[list[dict[str, Any]]]:
    """Return the blocks as config.json has them. Raises CheckpointError."""
    blocks: dict[tuple[int, int], dict[str, tuple[int, ...]]] = {}
    for name, tensor in facts.tensors.items():
        if found := _BLOCK.fullmatch(name):
            blocks.setdefault((int(found[1]), int(found[2])), {})[found[3]] = tensor.shape
    stages: list[list[dict[str, Any]]] = []
    for stage, index in sorted(blocks):
        if index == 0:
            stages.append([])
        if stage != len(stages) - 1 or index != len(stages[-1]):
            raise CheckpointError(f"it has v.blk.{stage}.{index}, and not the block before it")
        try:
            stages[-1].append(_block(blocks[stage, index], 2 if index == 0 else 1))
        except (KeyError, ValueError) as exc:
            raise CheckpointError(
                f"v.blk.{stage}.{index} is no block of MobileNet-V5: a tensor is missing or has "
                "other dimensions"
            ) from exc
    return stages


def _block(shapes: _Shapes, stride: int) -> dict[str, Any]:
    """Return a block. Raises KeyError and ValueError for other shapes."""
    if "conv_exp.weight" in shapes:
        wide, inputs, side, _ = shapes["conv_exp.weight"]
        own = {"block_type": "er", "exp_kernel_size": side, "exp_ratio": wide / inputs}
        out, *_ = shapes["conv_pwl.weight"]
    elif "pw_exp.conv.weight" in shapes:
        wide, inputs, _, _ = shapes["pw_exp.conv.weight"]
        own = {"block_type": "uir", "exp_ratio": wide / inputs}
        own |= {
            f"dw_kernel_size_{at}": _kernel(shapes, f"dw_{at}.conv.weight", 0)
            for at in ("start", "mid")
        }
        out, *_ = shapes["pw_proj.conv.weight"]
    else:
        own = _attention(shapes)
        out, *_ = shapes["attn.output.proj.weight"]
    return own | {"out_chs": out, "stride": stride}


def _attention(shapes: _Shapes) -> dict[str, Any]:
    (inner, *_), (size, *_) = (shapes[f"attn.{part}.proj.weight"] for part in ("query", "key"))
    return {
        "block_type": "mqa",
        "dw_kernel_size": _kernel(shapes, _FEWER, 3),
        "key_dim": size,
        "kv_stride": 2 if _FEWER in shapes else 1,
        "num_heads": inner // size,
        "value_dim": size,
    }


def _kernel(shapes: _Shapes, name: str, usual: int) -> int:
    _, _, side, _ = shapes.get(name, (0, 0, usual, usual))
    return side


def _block_tensors(encoder: Config, names: Collection[str]) -> Parts:
    found = (_BLOCK.fullmatch(name) for name in names)
    return {f"{_TOWER}.blocks.{at[1]}.{at[2]}.{at[3]}": (at[0],) for at in found if at}


GEMMA3N_VISION = GgufProjector(
    texts=_TEXTS_3N,
    token="<image_soft_token>",
    around_token={"boi_token_id": "<start_of_image>", "eoi_token_id": "<end_of_image>"},
    tensors={
        **{f"embed_vision.{name}": (f"mm.{part}",) for name, part in _PARTS.items()},
        **{
            f"{_TOWER}.{name}": (f"v.{name}",)
            for name in (
                *("conv_stem.bn", "msfa.norm"),
                *("msfa.ffn.pw_exp.conv", "msfa.ffn.pw_exp.bn"),
                *("msfa.ffn.pw_proj.conv", "msfa.ffn.pw_proj.bn"),
            )
        },
    },
    whole={
        f"{_TOWER}.conv_stem.conv.weight": ("v.conv_stem.conv.weight",),
        f"{_TOWER}.conv_stem.conv.bias": ("v.conv_stem.conv.bias",),
    },
    encoder=_gemma3nv,
    outer=lambda facts, vision: {
        "vision_soft_tokens_per_image": vision["model_args"]["msfa_output_resolution"] ** 2
    },
    pictures=lambda given, sizes: given | {"size": dict.fromkeys(_SIDES, sizes["image_size"])},
    # Converters have written the scale in both forms.
    undone={f"{_TOWER}.conv_stem.conv.bias": flat, "layer_scale.gamma": flat},
    more=_block_tensors,
)

# --- Gemma 3n: the conformer


def _gemma3na(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    """Return audio_config; the converter writes another epsilon than the models have."""
    first = [facts.shape(f"a.conv1d.{at}.weight", 4) for at in range(2)]
    return {
        "conf_conv_kernel_size": facts.shape("a.blk.0.conv_dw.weight", 3)[2],
        "conf_num_attention_heads": sizes["num_attention_heads"],
        "conf_num_hidden_layers": sizes["num_hidden_layers"],
        "hidden_size": sizes["hidden_size"],
        "input_feat_size": facts.whole("audio.num_mel_bins"),
        "sscp_conv_channel_size": [shape[0] for shape in first],
        "sscp_conv_kernel_size": [list(shape[2:]) for shape in first],
        "vocab_offset": sizes["eoa_token_id"],
        "vocab_size": facts.rows("mm.a.embedding.weight"),
    }


_FRONT = "audio_tower.subsample_conv_projection"
GEMMA3N_AUDIO = GgufProjector(
    side=HEARING,
    texts=_TEXTS_3N,
    token="<audio_soft_token>",
    token_key="audio_token_id",
    around_token={"boa_token_id": "<start_of_audio>", "eoa_token_id": "<end_of_audio>"},
    tensors={
        **{f"embed_audio.{name}": (f"mm.a.{part}",) for name, part in _PARTS.items()},
        f"{_FRONT}.conv_0.conv": ("a.conv1d.0",),
        f"{_FRONT}.conv_0.norm": ("a.conv1d.0.norm",),
        f"{_FRONT}.conv_1.conv": ("a.conv1d.1",),
        f"{_FRONT}.conv_1.norm": ("a.conv1d.1.norm",),
        f"{_FRONT}.input_proj_linear": ("a.pre_encode.out",),
    },
    layers="audio_tower.conformer",
    prefix="a.blk",
    layer_tensors={
        "attention.attn.q_proj": ("attn_q",),
        "attention.attn.k_proj": ("attn_k",),
        "attention.attn.v_proj": ("attn_v",),
        "attention.attn.relative_position_embedding.pos_proj": ("linear_pos",),
        "attention.post": ("attn_out",),
        "attention.post_norm": ("ln2",),
        "attention.pre_attn_norm": ("ln1",),
        "ffw_layer_end.ffw_layer_1": ("ffn_up_1",),
        "ffw_layer_end.ffw_layer_2": ("ffn_down_1",),
        "ffw_layer_end.post_layer_norm": ("ffn_post_norm_1",),
        "ffw_layer_end.pre_layer_norm": ("ffn_norm_1",),
        "ffw_layer_start.ffw_layer_1": ("ffn_up",),
        "ffw_layer_start.ffw_layer_2": ("ffn_down",),
        "ffw_layer_start.post_layer_norm": ("ffn_post_norm",),
        "ffw_layer_start.pre_layer_norm": ("ffn_norm",),
        "lconv1d.conv_norm": ("norm_conv",),
        "lconv1d.depthwise_conv1d": ("conv_dw",),
        "lconv1d.linear_end": ("conv_pw2",),
        "lconv1d.linear_start": ("conv_pw1",),
        "lconv1d.pre_layer_norm": ("conv_norm",),
        "norm": ("layer_pre_norm",),
    },
    layer_whole={"attention.attn.per_dim_scale": ("per_dim_scale",)},
    encoder=_gemma3na,
    outer=lambda facts, audio: {FEATURES: {"feature_size": audio["input_feat_size"]}},
)

# --- Gemma 4: pictures

_CAUSAL = (1536, 2560)  # widths of the published text models whose pictures' tokens look back only


def _flat_patches(numbers: np.ndarray, sizes: Config) -> np.ndarray:
    """Maps [D, colours, rows, columns] to [D, rows * columns * colours]."""
    return np.moveaxis(numbers, 1, 3).reshape(len(numbers), -1)


def _gemma4v(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    """Squares of 3 x 3 patches and the base of positions are the published models': no key."""
    facts.get("vision.image_size")  # no size of any image
    table = facts.shape("v.position_embd.weight", 3)
    (size,) = facts.shape("v.blk.0.attn_q_norm.weight", 1)
    return {
        "head_dim": size,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": sizes["hidden_size"],
        "intermediate_size": sizes["intermediate_size"],
        "num_attention_heads": sizes["num_attention_heads"],
        "num_hidden_layers": sizes["num_hidden_layers"],
        "num_key_value_heads": facts.rows("v.blk.0.attn_k.weight") // size,
        "patch_size": sizes["patch_size"],
        "pooling_kernel_size": facts.whole("vision.projector.scale_factor", 3),
        "position_embedding_size": table[1],
        "rms_norm_eps": sizes["layer_norm_eps"],
        "rope_theta": 100.0,
        "standardize": facts.has("v.std_bias"),
        "use_clipped_linears": facts.has("v.blk.0.attn_q.input_min"),
    }


def _gemma4_outer(facts: Facts, vision: dict[str, Any]) -> dict[str, Any]:
    """Tell by the width whether the tokens of an image see each other, as llama.cpp does."""
    looks_back = facts.whole("vision.projection_dim") in _CAUSAL
    return {"use_bidirectional_attention": None if looks_back else "vision"}


_SEEN = {
    **{f"self_attn.{part}": f"attn_{part[0]}" for part in ("q_proj", "k_proj", "v_proj")},
    "self_attn.o_proj": "attn_out",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA4_VISION = GgufProjector(
    texts={"gemma4_text": "gemma4_text"},
    token="<|image|>",
    whole={
        "embed_vision.embedding_projection.weight": ("mm.input_projection.weight",),
        "vision_tower.patch_embedder.input_proj.weight": ("v.patch_embd.weight",),
        "vision_tower.patch_embedder.position_embedding_table": ("v.position_embd.weight",),
        "vision_tower.std_bias": ("v.std_bias",),
        "vision_tower.std_scale": ("v.std_scale",),
    },
    layers="vision_tower.encoder.layers",
    layer_tensors={
        "input_layernorm": ("ln1",),
        "post_attention_layernorm": ("attn_post_norm",),
        "pre_feedforward_layernorm": ("ln2",),
        "post_feedforward_layernorm": ("ffn_post_norm",),
        "self_attn.q_norm": ("attn_q_norm",),
        "self_attn.k_norm": ("attn_k_norm",),
    },
    layer_whole=bounded(_SEEN),
    encoder=_gemma4v,
    outer=_gemma4_outer,
    undone={
        "vision_tower.patch_embedder.input_proj.weight": _flat_patches,
        **undone_bounds(_SEEN),
    },
)

# --- Gemma 4: sounds

_HEARD = {
    **{f"self_attn.{part}": f"attn_{part[0]}" for part in ("q_proj", "k_proj", "v_proj")},
    "self_attn.post": "attn_out",
    "feed_forward1.ffw_layer_1": "ffn_up",
    "feed_forward1.ffw_layer_2": "ffn_down",
    "feed_forward2.ffw_layer_1": "ffn_up_1",
    "feed_forward2.ffw_layer_2": "ffn_down_1",
    "lconv1d.linear_start": "conv_pw1",
    "lconv1d.linear_end": "conv_pw2",
}


def _before_softplus(numbers: np.ndarray, sizes: Config) -> np.ndarray:
    """Undo log(1 + exp(x)), which the file holds."""
    given = np.maximum(numbers.astype(np.float64), np.finfo(np.float32).tiny)  # never 0 there
    return (given + np.log(-np.expm1(-given))).astype(np.float32)


def _gemma4a(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    """Windows, caps and factors are the published models': there are no keys."""
    channels = [facts.shape(f"a.conv1d.{layer}.weight", 4)[0] for layer in range(2)]
    return {
        "hidden_size": sizes["hidden_size"],
        "num_attention_heads": sizes["num_attention_heads"],
        "num_hidden_layers": sizes["num_hidden_layers"],
        "output_proj_dims": facts.rows("a.pre_encode.out.weight"),
        "rms_norm_eps": sizes["layer_norm_eps"],
        "subsampling_conv_channels": channels,
        "use_clipped_linears": facts.has("a.blk.0.attn_q.input_min"),
    }


GEMMA4_AUDIO = GgufProjector(
    side=HEARING,
    texts={"gemma4_text": "gemma4_text"},
    token="<|audio|>",
    token_key="audio_token_id",
    tensors={
        "audio_tower.output_proj": ("a.pre_encode.out",),
        "audio_tower.subsample_conv_projection.input_proj_linear": ("a.input_projection",),
        "audio_tower.subsample_conv_projection.layer0.conv": ("a.conv1d.0",),
        "audio_tower.subsample_conv_projection.layer0.norm": ("a.conv1d.0.norm",),
        "audio_tower.subsample_conv_projection.layer1.conv": ("a.conv1d.1",),
        "audio_tower.subsample_conv_projection.layer1.norm": ("a.conv1d.1.norm",),
        "embed_audio.embedding_projection": ("mm.a.input_projection",),
    },
    layers="audio_tower.layers",
    prefix="a.blk",
    layer_tensors={
        "feed_forward1.pre_layer_norm": ("ffn_norm",),
        "feed_forward1.post_layer_norm": ("ffn_post_norm",),
        "feed_forward2.pre_layer_norm": ("ffn_norm_1",),
        "feed_forward2.post_layer_norm": ("ffn_post_norm_1",),
        "lconv1d.pre_layer_norm": ("conv_norm",),
        "lconv1d.conv_norm": ("norm_conv",),
        "lconv1d.depthwise_conv1d": ("conv_dw",),
        "norm_pre_attn": ("attn_pre_norm",),
        "norm_post_attn": ("attn_post_norm",),
        "norm_out": ("ln2",),
        "self_attn.relative_k_proj": ("attn_k_rel",),
    },
    layer_whole={
        "self_attn.per_dim_scale": ("per_dim_scale.weight",),
        **bounded(_HEARD),
    },
    encoder=_gemma4a,
    outer=lambda facts, audio: {FEATURES: {"feature_size": facts.whole("audio.num_mel_bins")}},
    undone={
        "lconv1d.depthwise_conv1d": filters,
        "self_attn.per_dim_scale": _before_softplus,
        **undone_bounds(_HEARD),
    },
)
