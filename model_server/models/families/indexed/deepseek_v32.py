"""DeepSeek-V3.2: V3 whose layers attend to the tokens that an indexer chooses.

Source: DeepSeek-AI 2025, "DeepSeek-V3.2" (arXiv:2512.02556); names and config keys are those of
Hugging Face's `DeepseekV32ForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from model_server.kernels.pages import CacheShape, HeadShape
from model_server.models.config_keys import ConfigKeys
from model_server.models.families.experts.mlp_layers import listed_sparse
from model_server.models.families.indexed.indexed_attention import (
    IndexedLatentAttention,
    IndexerShape,
)
from model_server.models.families.latent_recipe import (
    LATENT,
    LATENT_OFF,
    latent_recipe,
    latent_shape,
)
from model_server.models.families.sigmoid_experts import ROUTED, routed_ffw
from model_server.models.known_keys import KnownKeys
from model_server.models.layers.latent_attention import LatentShape, latent_cache
from model_server.models.recipe import Family, Recipe
from sax.errors import CheckpointError

KEYS = KnownKeys(
    "deepseek_v32",
    (
        *LATENT,
        *ROUTED,
        "index_head_dim",
        "index_n_heads",
        "index_topk",
        "layer_types",
        "mlp_bias",
        "mlp_layer_types",
    ),
    LATENT_OFF,
)
_DEFAULTS = {
    "first_k_dense_replace": 3,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 2048,
    "max_position_embeddings": 163840,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "q_lora_rank": 1536,
    "topk_group": 4,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    keys.only("mlp_bias", False)
    for kind in keys.get("layer_types") or ():
        if kind != "indexed_attention":
            raise CheckpointError(
                f"config.json has {kind!r} in layer_types; the deepseek_v32 family has "
                "indexed_attention in every layer"
            )
    indexer, sparse = indexer_of(keys), listed_sparse(keys)
    recipe = latent_recipe(
        keys,
        values,
        sparse,
        routed_ffw(keys),
        attentions=[partial(IndexedLatentAttention, indexer)] * len(sparse),
    )
    return replace(recipe, cache=choosing_cache(keys, indexer))


def choosing_cache(
    keys: ConfigKeys,
    indexer: IndexerShape,
    others: tuple[HeadShape | None, ...] = (),
    shape: LatentShape | None = None,
) -> Callable[[int], CacheShape]:
    """Cache of latent vectors with keys for choosing behind.

    others: of layers without such. shape: None: as config.json says.
    """
    shape = shape or latent_shape(keys)
    cached = latent_cache(
        layers=keys.whole("num_hidden_layers"),
        heads=shape.heads,
        latent=shape.latent,
        rotated=shape.rotated_dim + indexer.cached,
    )

    def on(shards: int) -> CacheShape:
        return replace(cached(shards), chosen=True, others=others)

    return on


def indexer_of(keys: ConfigKeys, *, narrow: bool = True) -> IndexerShape:
    """Read an indexer's shape; narrow: its queries are made of the latent of the layer's.

    Raises CheckpointError.
    """
    shape = IndexerShape(
        keys.whole("index_n_heads"), keys.whole("index_head_dim"), keys.whole("index_topk")
    )
    missing = narrow and keys.whole_or_none("q_lora_rank") is None
    if shape.dim < keys.whole("qk_rope_head_dim", 64) or missing:
        raise CheckpointError(
            f"config.json has index_head_dim = {shape.dim} and q_lora_rank = "
            f"{keys.get('q_lora_rank')!r}; an indexer rotates qk_rope_head_dim numbers of a head"
            + " and needs queries of low rank"
            * narrow
        )
    return shape


FAMILY = Family(
    "deepseek_v32",
    ("deepseek_v32",),
    "DeepSeek-V3.2",
    configure,
    own_types_only=True,
)
