"""GLM-5: DeepSeek-V3's layers, which attend to chosen tokens; layers may share an indexer's choice.

Source: Z.ai 2026, "GLM-5"; names and config keys are those of Hugging Face's
`GlmMoeDsaForCausalLM`. The multi-token-prediction layer, which has an indexer, may draft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax

from model_server.kernels.chosen import Chosen
from model_server.kernels.media_vectors import MediaVectors
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import HeadShape, LayerPages
from model_server.models.config_keys import ConfigKeys
from model_server.models.families.experts.mlp_layers import listed_sparse
from model_server.models.families.indexed.deepseek_v32 import choosing_cache, indexer_of
from model_server.models.families.indexed.indexed_attention import IndexedLatentAttention
from model_server.models.families.latent_recipe import (
    LATENT,
    LATENT_OFF,
    latent_recipe,
    latent_shape,
)
from model_server.models.families.sigmoid_experts import ROUTED, routed_ffw
from model_server.models.known_keys import KnownKeys, all_in, one_of
from model_server.models.layers.decoder import Decoder
from model_server.models.layers.layers import run_layer, sum_and_norm
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.layers.rope import Rotary
from model_server.models.recipe import Family, Recipe
from sax.errors import CheckpointError

# Layers that attend to the tokens which the indexer of an earlier layer chose (GLM-5).
#
# Source: https://arxiv.org/abs/2603.12201. The choice is handed from layer to layer beside the
# stream: layers without an indexer have no weights for one and cache no key for choosing.


class ChoosingLayer(PreNormLayer):
    """A pre-norm layer that takes and passes on which tokens queries attend to."""

    attention: IndexedLatentAttention

    def __call__(
        self,
        x: jax.Array,  # f32[T, D]
        before: Chosen | None,
        rotation: Rotary,
        pages: LayerPages,
        batch: PagedBatch,
    ) -> tuple[jax.Array, Chosen, LayerPages]:
        """As a call, with the tokens that were chosen last."""
        normed = self.before_attention(x)
        mixed, chosen, pages = self.attention.attend(normed, before, rotation, pages, batch)
        x, seen = sum_and_norm(self.before_ffw, x, mixed)
        return x + self.ffw(seen), chosen, pages


class ChoosingDecoder(Decoder):
    """A decoder whose layers pass on the tokens that queries attend to; all are `ChoosingLayer`.

    The first layer of a pipeline stage has an indexer (see `Recipe.choosers`).
    """

    def run(
        self,
        x: jax.Array,
        positions: jax.Array,
        pages: Sequence[LayerPages],
        batch: PagedBatch,
        media: MediaVectors | None = None,
    ) -> tuple[jax.Array, tuple[LayerPages, ...]]:
        """As `Decoder`; media only replace embeddings."""
        assert media is None or not media.levels, "its images are vectors among the embeddings"
        rotations = {rope: rope and rope.at(positions) for rope in dict.fromkeys(self.ropes)}
        x, chosen = batch.divided(x), None
        written: list[LayerPages] = []
        for layer, rope, held in zip(self.layers, self.ropes, pages, strict=True):
            x, chosen, held = run_layer(layer, x, chosen, rotations[rope], held, batch)
            x = batch.divided(x)
            written.append(held)
        return x, tuple(written)


_INDEXER = ("index_head_dim", "index_n_heads", "index_topk")
SHARING = ("index_skip_topk_offset", "index_topk_freq", "index_topk_pattern", "indexer_types")
KEYS = KnownKeys(
    "glm_moe_dsa",
    (*LATENT, *ROUTED, *_INDEXER, *SHARING, "mlp_layer_types"),
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
    return replace(
        recipe, cache=choosing_cache(keys, indexer, others), choosers=choosers_of(chooses)
    )


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


def choosers_of(chooses: Sequence[bool]) -> tuple[int | None, ...]:
    """Layers whose choices are taken, one per layer; None: the layer chooses for itself."""
    last = 0
    made: list[int | None] = []
    for index, own in enumerate(chooses):
        last = index if own else last
        made.append(None if own else last)
    return tuple(made)


FAMILY = Family("glm_moe_dsa", ("glm_moe_dsa",), "GLM-5", configure, own_types_only=True)
