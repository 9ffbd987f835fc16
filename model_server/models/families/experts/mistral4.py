"""Mistral Small 4: latent attention whose queries grow with their position, and experts.

Source: Mistral AI 2026, "Mistral Small 4"; names and config keys are those of Hugging Face's
`Mistral4ForCausalLM`. The part that sees, if a checkpoint has one, is
`media/pixtral_vision_encoder`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.dense.ministral3 import query_growth
from model_server.models.families.latent_recipe import (
    LATENT,
    LATENT_OFF,
    latent_recipe,
    latent_shape,
)
from model_server.models.families.ropes import settings_of
from model_server.models.families.sigmoid_experts import (
    ROUTED,
    RoutedNames,
    first_sparse,
    routed_ffw,
)
from model_server.models.known_keys import KnownKeys
from model_server.models.layers.rope import Rope, rope_of
from model_server.models.layers.routing import GroupedSoftmaxChoice, checked_count
from model_server.models.media.media_recipe import encoders
from model_server.models.media.pixtral_vision_encoder import MISTRAL3_KEYS, mistral3_vision
from model_server.models.recipe import Family, Recipe
from sax.errors import CheckpointError

KEYS = KnownKeys("mistral4", (*LATENT, *ROUTED, "rope_interleave", *MISTRAL3_KEYS), LATENT_OFF)
_DEFAULTS = {
    "first_k_dense_replace": 0,
    "kv_lora_rank": 256,
    "max_position_embeddings": 1048576,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "q_lora_rank": 1024,
    "qk_nope_head_dim": 64,
    "rope_parameters": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 128.0,
        "llama_4_scaling_beta": 0.1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_theta": 10000.0,
        "rope_type": "yarn",
    },
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    recipe = latent_recipe(
        keys,
        values,
        first_sparse(keys),
        routed_ffw(keys, _choice(keys), names=RoutedNames(bias=None, together=True)),
        rope=_rope(keys),
    )
    return replace(recipe, media=encoders(mistral3_vision(keys, recipe.embed, values)))


def _choice(keys: ConfigKeys) -> GroupedSoftmaxChoice:
    """Read how experts are chosen. Raises CheckpointError."""
    for key, value in {"n_group": 1, "scoring_func": "softmax", "topk_group": 1}.items():
        keys.only(key, value)
    return GroupedSoftmaxChoice(
        checked_count(keys, keys.whole("n_routed_experts")),
        1,
        1,
        keys.number("routed_scaling_factor", 1.0),
        normalised=keys.flag("norm_topk_prob", True),
    )


def _rope(keys: ConfigKeys) -> Rope:
    """Raises CheckpointError."""
    shape, given = latent_shape(keys), settings_of(keys)
    growth = query_growth(keys, given)
    share = shape.rotated_dim / shape.query_dim
    if (found := given.pop("partial_rotary_factor", share)) != share:
        raise CheckpointError(
            f"config.json has partial_rotary_factor = {found!r} among its rope settings; of a head "
            f"of the mistral4 family {shape.rotated_dim} of {shape.query_dim} dimensions rotate"
        )
    settings = keys.all | {"rope_parameters": given}
    interleaved = keys.flag("rope_interleave", True)
    rope = rope_of(settings, shape.rotated_dim, interleaved=interleaved)
    return replace(rope, query_growth=growth)


FAMILY = Family("mistral4", ("mistral4",), "Mistral Small 4", configure, own_types_only=True)
