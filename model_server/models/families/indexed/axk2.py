"""A.X K2: DeepSeek-V3.2's chosen tokens, with norms and heads that gates open.

Source: SK Telecom 2026, "A.X K2"; names and config keys are those of Hugging Face's
`AXK2ForCausalLM`. Layers that draft are skipped: the reference computes none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.kernels.row_sums import logistic, silu
from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import norm_of
from model_server.models.families.experts.mlp_layers import listed_sparse
from model_server.models.families.indexed.deepseek_v32 import choosing_cache, indexer_of
from model_server.models.families.indexed.indexed_attention import IndexedLatentAttention
from model_server.models.families.latent_recipe import LATENT, LATENT_OFF, latent_recipe
from model_server.models.families.sigmoid_experts import ROUTED, routed_ffw, sigmoid_choice
from model_server.models.known_keys import KnownKeys, all_in, one_of
from model_server.models.layers.latent_attention import DeclareLinear, HeadInputs
from model_server.models.layers.layers import Linear
from model_server.models.recipe import Family, Recipe
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

KEYS = KnownKeys(
    "axk2",
    (
        *LATENT,
        *ROUTED,
        "gated_norm_rank",
        "index_head_dim",
        "index_n_heads",
        "index_topk",
        "mlp_layer_types",
    ),
    {
        **LATENT_OFF,
        "layer_types": all_in("indexed_attention"),
        "rope_interleave": one_of(True),
    },
)
_DEFAULTS = {
    "first_k_dense_replace": 1,
    "gated_norm_rank": 16,
    "index_head_dim": 128,
    "index_n_heads": 16,
    "index_topk": 2048,
    "kv_lora_rank": 128,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 512,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "q_lora_rank": 384,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
}


class GatedNorm(nnx.Module):
    """norm(x) * sigmoid(up(silu(down(norm(x)))))."""

    def __init__(self, keys: ConfigKeys, rank: int, prefix: str, form: WeightForm) -> None:
        embed = keys.whole("hidden_size")
        down, up = (f"{prefix}.W_down.weight",), (f"{prefix}.W_up.weight",)
        self.norm = norm_of(keys, f"{prefix}.norm")
        self.down = Linear(rank, embed, (None, "embed"), down, form=form)
        self.up = Linear(embed, rank, ("embed", None), up, form=form)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f32[T, D] to f32[T, D]."""
        y = self.norm(x)
        return y * logistic(self.up(silu(self.down(y))))


class SelfGatedAttention(IndexedLatentAttention):
    """Attention to chosen tokens whose queries come with gates of what their heads find.

    One projection makes both, of the queries' latent as it is and as it is normed.
    """

    def query_up(self, linear: DeclareLinear, axis: Any) -> Linear:
        s = self.shape
        assert s.query_latent is not None, "the gates are made of it, too"
        rows = s.heads * (s.query_dim + s.value_dim)
        return linear("q_b_proj", rows, 2 * s.query_latent, (axis, None), False)

    def head_inputs(self, x: jax.Array) -> HeadInputs:
        """Map f32[T, D]."""
        s, plain = self.shape, self.query_down(x)
        narrow = self.query_norm(plain)
        both = self.queries(jnp.concatenate([narrow, plain], axis=-1))
        heads = both.reshape(x.shape[0], s.heads, s.query_dim + s.value_dim)
        queries, opening = jnp.split(heads, [s.query_dim], axis=-1)
        return HeadInputs(narrow, queries, opening)


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    indexer, sparse = indexer_of(keys), listed_sparse(keys)
    if (keys.get("n_group") is None) != (keys.get("topk_group") is None):
        raise CheckpointError(
            "config.json has one of n_group and topk_group; the axk2 family needs both or neither"
        )
    # Experts of other groups count as if they scored 0, as in the published code.
    choice = replace(sigmoid_choice(keys, keys.whole("n_routed_experts")), closed=0.0)
    norm = partial(GatedNorm, keys, keys.whole("gated_norm_rank"))
    recipe = latent_recipe(
        keys,
        values,
        sparse,
        routed_ffw(keys, choice),
        attentions=[partial(SelfGatedAttention, indexer)] * len(sparse),
        norms=(norm, norm),
    )
    return replace(recipe, cache=choosing_cache(keys, indexer), own_head=None)


FAMILY = Family("axk2", ("axk2",), "A.X K2", configure, own_types_only=True)
