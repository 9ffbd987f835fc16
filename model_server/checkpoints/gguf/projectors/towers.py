"""Towers of pictures whose patches are rotated: those of Kimi K2.5, MiniMax-M3 and Step 3.7."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_server.checkpoints.gguf.architecture import Config
from model_server.checkpoints.gguf.facts import Facts
from model_server.checkpoints.gguf.projectors.projector import FRAMES, GgufProjector
from sax.errors import CheckpointError

# --- Kimi K2.5, whose patches are rotated by row and column, beside learnt positions

_POSITIONS = "v.position_embd.weight"


def _kimi(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    """Positions are a table by row and column; that of frames is computed."""
    facts.get("vision.image_size")  # of the table
    high, wide, _ = facts.shape(_POSITIONS, 3)
    merge = facts.whole("vision.projector.scale_factor", 2)
    kept = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
    return {
        **{key: sizes[key] for key in (*kept, "patch_size")},
        "merge_kernel_size": [merge, merge],
        "pos_emb_height": high,
        "pos_emb_width": wide,
        # As written in config.json: the file has the nearest float32
        "projection_layer_norm_eps": float(f"{sizes['layer_norm_eps']:.6g}"),
    }


def _padded(given: dict[str, Any], vision: Config) -> dict[str, Any]:
    """Images are bounded by patches, of which the file has the pixels."""
    size = given.pop("size", None)
    return given | (
        {} if size is None else {"max_patches": size["longest_edge"] // vision["patch_size"] ** 2}
    )


def _pairs_apart(numbers: np.ndarray, sizes: Config) -> np.ndarray:
    """Undo that rows' and columns' pairs of queries and keys are halves of a head in the file."""
    queries, keys, values = np.split(numbers, 3)
    heads, rest = sizes["num_attention_heads"], numbers.shape[1:]

    def apart(part: np.ndarray) -> np.ndarray:
        return part.reshape(heads, 2, -1, 2, *rest).swapaxes(1, 2).reshape(part.shape)

    return np.concatenate([apart(queries), apart(keys), values])


KIMI_K25 = GgufProjector(
    texts={"deepseek_v3": "deepseek_v3"},
    token="<|media_pad|>",
    tensors={
        "vision_tower.patch_embed.proj": ("v.patch_embd",),
        "vision_tower.encoder.final_layernorm": ("v.post_ln",),
        "mm_projector.pre_norm": ("mm.input_norm",),
        "mm_projector.proj.0": ("mm.1",),
        "mm_projector.proj.2": ("mm.2",),
    },
    whole={"vision_tower.patch_embed.pos_emb.weight": (_POSITIONS,)},
    layers="vision_tower.encoder.blocks",
    layer_tensors={
        "norm0": ("ln1",),
        "norm1": ("ln2",),
        "wqkv": ("attn_qkv",),
        "wo": ("attn_out",),
        "mlp.fc0": ("ffn_up",),
        "mlp.fc1": ("ffn_down",),
    },
    encoder=_kimi,
    pictures=_padded,
    undone={"wqkv": _pairs_apart},
)

# --- MiniMax-M3, whose patches are rotated by frame, row and column


def _minimax(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    facts.get("vision.image_size")  # of no picture
    kept = {key: value for key, value in sizes.items() if key != "image_size"}
    return {
        **kept,
        "hidden_act": "gelu",
        "spatial_merge_size": facts.whole("vision.spatial_merge_size", 2),
        "temporal_patch_size": 2,
    }


def _firsts_together(numbers: np.ndarray, sizes: Config) -> np.ndarray:
    """Undo that in a head both numbers of pairs by frames precede those by rows and by columns: in
    a folder the first number of all pairs comes first. The rest of a head does not turn.
    """
    heads = sizes["num_attention_heads"]
    size = len(numbers) // heads
    pairs = size // 3 // 2  # of each of the three
    turning = np.arange(6 * pairs).reshape(3, 2, pairs).swapaxes(0, 1).ravel()
    order = np.concatenate([turning, np.arange(6 * pairs, size)])
    return numbers[(np.arange(heads)[:, None] * size + order).ravel()]


_PROJECTED = {"linear_1": "1", "linear_2": "2"}
MINIMAX_M3 = GgufProjector(
    texts={"minimax_m3_vl_text": "minimax_m3_vl_text"},
    token="]<]image[>[",
    tensors={
        "vision_tower.pre_layrnorm": ("v.pre_ln",),
        **{f"multi_modal_projector.{name}": (f"mm.{of}",) for name, of in _PROJECTED.items()},
        **{f"patch_merge_mlp.{name}": (f"mm.merger.fc{of}",) for name, of in _PROJECTED.items()},
    },
    whole={"vision_tower.embeddings.patch_embedding.weight": FRAMES},
    layers="vision_tower.encoder.layers",
    layer_tensors={
        "layer_norm1": ("ln1",),
        "layer_norm2": ("ln2",),
        **{f"self_attn.{part}_proj": (f"attn_{part}",) for part in ("q", "k", "v", "out")},
        "mlp.fc1": ("ffn_up",),
        "mlp.fc2": ("ffn_down",),
    },
    encoder=_minimax,
    outer=lambda facts, encoder: {"projector_hidden_size": facts.rows("mm.1.weight")},
    undone={f"self_attn.{part}_proj": _firsts_together for part in "qk"},
)

# --- Step 3.7, whose vectors are shortened by convolutions behind the tower


def _step(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    if facts.whole("vision.projector.scale_factor", 4) != 4:
        raise CheckpointError("its projector joins other than 4 x 4 patches")
    kept = ("hidden_size", "image_size", "layer_norm_eps", "num_attention_heads")
    return {
        **{key: sizes[key] for key in (*kept, "num_hidden_layers", "patch_size")},
        "mlp_ratio": sizes["intermediate_size"] / sizes["hidden_size"],
    }


def _windows(given: dict[str, Any], vision: Config) -> dict[str, Any]:
    """Windows are of the published size: there is no key."""
    return given | {"size": dict.fromkeys(("height", "width"), vision["image_size"])}


STEP3P7 = GgufProjector(
    texts={"step3p5": "step3p5"},
    token="<im_patch>",
    tensors={
        "vision_model.conv1": ("v.patch_embd",),
        "vision_model.ln_pre": ("v.pre_ln",),
        "vision_model.vit_downsampler1": ("mm.0",),
        "vision_model.vit_downsampler2": ("mm.1",),
        "vit_large_projector": ("mm.model.fc",),
    },
    whole={"vision_model.positional_embedding": ("v.position_embd.weight",)},
    layers="vision_model.transformer.resblocks",
    layer_tensors={
        "ln_1": ("ln1",),
        "ln_2": ("ln2",),
        "attn.out_proj": ("attn_out",),
        "mlp.c_fc": ("ffn_up",),
        "mlp.c_proj": ("ffn_down",),
    },
    layer_whole={
        "attn.in_proj_weight": ("attn_qkv.weight",),
        "attn.in_proj_bias": ("attn_qkv.bias",),
        "ls_1.gamma": ("ls1.weight",),
        "ls_2.gamma": ("ls2.weight",),
    },
    encoder=_step,
    outer=lambda facts, vision: {"projector_bias": facts.has("mm.model.fc.bias")},
    pictures=_windows,
)
