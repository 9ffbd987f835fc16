"""Qwen2.5-VL: Qwen2-VL with a tower of RMS norms, gated feed-forwards and attention in windows.

Source: Bai et al. 2025 (arXiv:2502.13923); names and config keys are those of Hugging Face's
`Qwen2_5_VLForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from flax import nnx

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.qwen2 import WINDOWS
from model_server.models.families.qwen_vl.qwen2_vl import DEFAULTS, MERGER, recipe_of
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.activations import activation_of
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.media.qwen.tower import TowerShape
from model_server.models.media.qwen.tower_keys import (
    EPSILON,
    merging,
    rms_norms,
    sizes_of,
    vision_keys,
    whole_numbers,
)
from model_server.models.media.qwen.vision_encoder import OUTER, QWEN2, TOKENS, Timing, apart
from model_server.models.recipe import Family, Recipe
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

KEYS = KnownKeys("qwen2_5_vl", (*DECODER, *WINDOWS, *OUTER), {**DECODER_OFF, **TOKENS})
_VISION = ("fullatt_block_indexes", "intermediate_size", "out_hidden_size", "window_size")
_VISION += ("tokens_per_second",)
_VISION_DEFAULTS = {
    "depth": 32,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 3420,
    "num_heads": 16,
    "out_hidden_size": 3584,
    "tokens_per_second": 4,
    "window_size": 112,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    return recipe_of(ConfigKeys(config, KEYS, DEFAULTS), values, tower, _KIND)


def _vision_keys(keys: ConfigKeys, more: tuple[str, ...] = ()) -> ConfigKeys:
    return vision_keys(keys, (*_VISION, *more), _VISION_DEFAULTS)


def _timing(keys: ConfigKeys) -> Timing:
    return apart(_vision_keys(keys).whole("tokens_per_second"))


_KIND = replace(QWEN2, timing=_timing)


def tower(keys: ConfigKeys, shared: int | None = None) -> TowerShape:
    """Return the tower of a vision_config. Raises CheckpointError.

    shared: the usual number of heads of keys and values, where heads of queries share them.
    """
    keys = _vision_keys(keys, () if shared is None else ("num_key_value_heads",))
    sizes = sizes_of(keys, keys.whole("hidden_size"))
    pixels = sizes["patch"][2] * sizes["merge"]  # of a vector's side
    window = keys.whole("window_size") // pixels
    if not window:
        raise CheckpointError(
            f"vision_config has window_size = {keys.whole('window_size')}, less than the {pixels} "
            "pixels of a vector"
        )
    return TowerShape(
        **sizes,
        out=keys.whole("out_hidden_size"),
        kv_heads=shared and shared_heads(keys, sizes["heads"], shared),
        window=window,
        whole=whole_numbers(keys, "fullatt_block_indexes", (7, 15, 23, 31)),
        merger=merging(MERGER),
        norm=rms_norms(EPSILON),
        ffw=_gated_ffw(keys),
    )


def shared_heads(keys: ConfigKeys, heads: int, usual: int) -> int:
    """Return the heads of keys and values. Raises CheckpointError."""
    found = keys.whole("num_key_value_heads", usual)
    if heads % found:
        raise CheckpointError(
            f"vision_config has {heads} heads of queries and {found} of keys; each must be shared "
            "by as many"
        )
    return found


def _gated_ffw(keys: ConfigKeys) -> Callable[[int, str, WeightForm], nnx.Module]:
    embed, ffw = keys.whole("hidden_size"), keys.whole("intermediate_size")
    activation = activation_of(keys.get("hidden_act"))

    def build(_: int, name: str, form: WeightForm) -> GatedFeedForward:
        return GatedFeedForward.hugging_face(
            embed, ffw, name, activation=activation, form=form, biased=True
        )

    return build


FAMILY = Family(
    "qwen2_5_vl",
    ("qwen2_5_vl_text", "qwen2_5_vl"),
    "Qwen2.5-VL",
    configure,
    own_types_only=True,
)
