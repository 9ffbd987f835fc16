"""The encoder of Kimi K2.5: patches are rotated by row and column, beside learnt positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_server.checkpoints.gguf.architecture import Config
from model_server.checkpoints.gguf.facts import Facts
from model_server.checkpoints.gguf.projectors.projector import GgufProjector
from sax.errors import CheckpointError

_POSITIONS = "v.position_embd.weight"


def _kimi(facts: Facts, sizes: dict[str, Any]) -> dict[str, Any]:
    """Positions are a table by row and column; that of frames is computed."""
    facts.get("vision.image_size")  # of the table
    found = facts.tensors.get(_POSITIONS)
    if found is None or len(found.shape) != 3:
        raise CheckpointError(f"{_POSITIONS} is missing or has no rows and columns")
    merge = facts.whole("vision.projector.scale_factor", 2)
    kept = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
    return {
        **{key: sizes[key] for key in (*kept, "patch_size")},
        "merge_kernel_size": [merge, merge],
        "pos_emb_height": found.shape[0],
        "pos_emb_width": found.shape[1],
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
