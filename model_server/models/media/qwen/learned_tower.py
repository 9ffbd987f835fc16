"""The tower of Qwen3-VL and Qwen3.5: positions are also learned, on a square that is stretched."""

from __future__ import annotations

import math

from model_server.models.config_keys import ConfigKeys
from model_server.models.media.qwen.tower import TowerShape
from model_server.models.media.qwen.tower_keys import (
    layer_norm,
    plain_ffw,
    sizes_of,
    vision_keys,
    whole_numbers,
)
from sax.errors import CheckpointError

_READ = ("deepstack_visual_indexes", "intermediate_size", "num_position_embeddings")
_READ += ("out_hidden_size",)
_DEFAULTS = {
    "depth": 27,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "num_position_embeddings": 2304,
    "out_hidden_size": 3584,
    "patch_size": 16,
}


def learned_tower(keys: ConfigKeys, deep: tuple[int, ...]) -> TowerShape:
    """Return the tower; deep: layers that feed the language model, if the config says nothing.

    Raises CheckpointError.
    """
    keys = vision_keys(keys, _READ, _DEFAULTS)
    embed, count = keys.whole("hidden_size"), keys.whole("num_position_embeddings")
    side = math.isqrt(count)
    if side**2 != count:
        raise CheckpointError(
            f"vision_config has num_position_embeddings = {count}; they must form a square"
        )
    return TowerShape(
        **sizes_of(keys, embed),
        out=keys.whole("out_hidden_size"),
        patch_bias=True,
        side=side,
        deep=whole_numbers(keys, "deepstack_visual_indexes", deep),
        norm=layer_norm,
        ffw=plain_ffw(keys, embed, keys.whole("intermediate_size"), "linear_fc1", "linear_fc2"),
    )
