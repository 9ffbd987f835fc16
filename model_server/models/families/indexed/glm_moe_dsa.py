"""GLM-5: DeepSeek-V3's layers, which attend to chosen tokens; layers may share an indexer's choice.

Source: Z.ai 2026, "GLM-5"; names and config keys are those of Hugging Face's
`GlmMoeDsaForCausalLM`. Multi-token-prediction layers are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from model_server.kernels.pages import HeadShape
from model_server.models.config_keys import ConfigKeys
from model_server.models.families.experts.mlp_layers import listed_sparse
from model_server.models.families.indexed.deepseek_v32 import choosing_cache, indexer_of
from model_server.models.families.indexed.indexed_attention import IndexedLatentAttention
from model_server.models.families.indexed.shared_choice import ChoosingDecoder, ChoosingLayer
from model_server.models.families.latent_recipe import (
    LATENT,
    LATENT_OFF,
    latent_recipe,
    latent_shape,
)
from model_server.models.families.sigmoid_experts import ROUTED, routed_ffw
from model_server.models.known_keys import KnownKeys, all_in, one_of
from model_server.models.recipe import Family, Recipe
from sax.errors import CheckpointError

_INDEXER = ("index_head_dim", "index_n_heads", "index_topk")
_SHARING = ("index_skip_topk_offset", "index_topk_freq", "index_topk_pattern", "indexer_types")
KEYS = KnownKeys(
    "glm_moe_dsa",
    (*LATENT, *ROUTED, *_INDEXER, *_SHARING, "mlp_layer_types"),
    {
        **LATENT_OFF,
        "indexer_rope_interleave": one_of(True),
        "layer_types": all_in("indexed_attention"),
        "mlp_bias": one_of(False),
        "rope_interleave": one_of(True),
    },
)
_DEFAULTS = {
    "first_k_dense_replace": 3,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "index_topk": 2048,
    "max_position_embeddings": 202752,
    "n_group": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "q_lora_rank": 2048,
    "qk_nope_head_dim": 192,
    "rms_norm_eps": 1e-5,
    "topk_group": 1,
    "v_head_dim": 256,
}
_CHOOSES = {"full": True, "F": True, "shared": False, "S": False}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    indexer, shape, chooses = indexer_of(keys), latent_shape(keys), choosing_layers(keys)
    taking = [index for index, own in enumerate(chooses) if not own]
    recipe = latent_recipe(
        keys,
        values,
        listed_sparse(keys),
        routed_ffw(keys),
        attentions=[
            partial(IndexedLatentAttention, indexer, chooses=own, interleaved=True)
            for own in chooses
        ],
        layer_kind=ChoosingLayer,
        decoder_kind=ChoosingDecoder,
        unused=tuple(f"model.layers.{index}.self_attn.indexer." for index in taking),
    )
    narrow = HeadShape(1, shape.latent + shape.rotated_dim, 0)
    others = tuple(None if own else narrow for own in chooses) if taking else ()
    return replace(recipe, cache=choosing_cache(keys, indexer, others), choosers=_choosers(chooses))


def choosing_layers(keys: ConfigKeys) -> list[bool]:
    """One flag per layer: True if it has an indexer, False if it takes the choice before it.

    `indexer_types` comes before `index_topk_pattern`, and that before the regular order: all but
    every `index_topk_freq`-th take it. Raises CheckpointError.
    """
    layers = keys.whole("num_hidden_layers")
    key = "index_topk_pattern" if keys.get("indexer_types") is None else "indexer_types"
    if (given := keys.get(key)) is None:
        every = keys.whole("index_topk_freq", 1, least=0) or 1
        offset = keys.whole("index_skip_topk_offset", 2, least=0)
        found = [max(index - offset + 1, 0) % every == 0 for index in range(layers)]
    else:
        kinds = [_CHOOSES.get(kind) if isinstance(kind, str) else None for kind in given]
        found = [bool(kind) for kind in kinds[:layers]]
        if None in kinds or len(kinds) < layers:
            raise CheckpointError(
                f"config.json has {key} = {given!r}; the {keys.family} family needs full or shared "
                f"for each of {layers} layers"
            )
    if not found[0]:
        raise CheckpointError(
            "config.json lets the first layer share the choice of tokens of a layer before it, "
            "and there is none: its indexer must be full"
        )
    return found


def _choosers(chooses: Sequence[bool]) -> tuple[int | None, ...]:
    """Layers whose choices are taken, one per layer; None: the layer chooses for itself."""
    last = 0
    made: list[int | None] = []
    for index, own in enumerate(chooses):
        last = index if own else last
        made.append(None if own else last)
    return tuple(made)


FAMILY = Family("glm_moe_dsa", ("glm_moe_dsa",), "GLM-5", configure, own_types_only=True)
