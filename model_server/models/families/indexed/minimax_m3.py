"""MiniMax-M3: queries see the blocks of tokens that they score highest; experts with clamped gates.

It sees by `media/minimax_vision_encoder`. To the engine a layer that chooses is two,
one of which caches keys for choosing.
Source: MiniMax 2026, "MiniMax-M3"; names and config keys are those of Hugging Face's
`MiniMaxM3VLForConditionalGeneration`. Layers that draft are skipped: the reference defines none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
from flax import nnx

from model_server.kernels.chosen import Chosen
from model_server.kernels.chosen_blocks import ChosenBlocks, attend_in_blocks, choose_blocks
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import CacheShape, HeadShape, LayerPages
from model_server.models.config_keys import ConfigKeys, kinds_of_layers
from model_server.models.families.decoder_recipe import decoder_recipe, gated_ffw, norm_of
from model_server.models.families.experts.mlp_layers import SPARSE
from model_server.models.families.indexed.glm_moe_dsa import ChoosingDecoder
from model_server.models.families.llama import attention_shape
from model_server.models.families.ropes import partial_rope
from model_server.models.families.sigmoid_experts import ROUTED, RoutedNames, routed_ffw
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored, one_of
from model_server.models.layers.activations import ClampedGate
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.layers import Linear, RmsNorm, sum_and_norm
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.layers.rope import Rotary
from model_server.models.layers.routing import GroupedSigmoidChoice, checked_count
from model_server.models.media.media_recipe import encoders
from model_server.models.media.minimax_vision_encoder import OUTER, minimax_vision
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError


class BlockIndexer(nnx.Module):
    """Scores blocks by small heads; gives the stream on as it is."""

    def __init__(
        self,
        keys: ConfigKeys,
        blocks: ChosenBlocks,
        prefix: str,  # of the layer
        form: WeightForm,
    ) -> None:
        heads, size = keys.whole("index_n_heads"), keys.whole("index_head_dim")
        embed, epsilon = keys.whole("hidden_size"), keys.number("rms_norm_eps")
        self.blocks, self.heads, self.size = blocks, heads, size
        self.norm = norm_of(keys, f"{prefix}.input_layernorm", plus_one=True)

        def linear(part: str, outputs: int) -> Linear:
            source = (f"{prefix}.self_attn.index_{part}_proj.weight",)
            return Linear(outputs, embed, (None, None), source, form=form)

        self.queries, self.key = linear("q", heads * size), linear("k", size)
        self.query_norm, self.key_norm = (
            RmsNorm(
                size,
                (f"{prefix}.self_attn.index_{part}_norm.weight",),
                epsilon=epsilon,
                plus_one=True,
            )
            for part in "qk"
        )

    def __call__(
        self,
        x: jax.Array,  # f32[T, D]
        before: Chosen | None,
        rotation: Rotary,
        pages: LayerPages,
        batch: PagedBatch,
    ) -> tuple[jax.Array, Chosen, LayerPages]:
        seen = self.norm(x)
        queries = self.query_norm(self.queries(seen).reshape(-1, self.heads, self.size))
        keys = self.key_norm(self.key(seen)[:, None])
        chosen, pages = choose_blocks(batch, pages, rotation(queries), rotation(keys), self.blocks)
        return x, chosen, pages


class BlockAttention(Attention):
    """Attention to blocks that were chosen."""

    def of_chosen(
        self,
        x: jax.Array,  # f32[T, D]
        chosen: Chosen,
        rotation: Rotary,
        pages: LayerPages,
        batch: PagedBatch,
    ) -> tuple[jax.Array, LayerPages]:
        q, k, v = self._heads(x, rotation)
        mixed, pages = attend_in_blocks(batch, pages, q, k, v, chosen, scale=self.shape.scale)
        return self.out(self.opened(x, mixed).reshape(x.shape[0], -1)), pages


class BlockLayer(PreNormLayer):
    """A pre-norm layer that attends to what was chosen for it; None: to everything."""

    attention: BlockAttention

    def __init__(self, *parts: nnx.Module, chooses: bool) -> None:
        super().__init__(*parts)
        self.chooses = chooses

    def __call__(
        self,
        x: jax.Array,  # f32[T, D]
        before: Chosen | None,
        rotation: Rotary,
        pages: LayerPages,
        batch: PagedBatch,
    ) -> tuple[jax.Array, None, LayerPages]:
        chosen = before if self.chooses and before is not None else Chosen(None, None)
        mixed, pages = self.attention.of_chosen(
            self.before_attention(x), chosen, rotation, pages, batch
        )
        x, seen = sum_and_norm(self.before_ffw, x, mixed)
        return x + self.ffw(seen), None, pages


# What published files call these keys
_SPARSE_CONFIG = "sparse_attention_config"
_NAMES = {
    "sparse_block_size": "index_block_size",
    "sparse_index_dim": "index_head_dim",
    "sparse_local_block": "index_local_blocks",
    "sparse_num_index_heads": "index_n_heads",
    "sparse_topk_blocks": "index_topk_blocks",
}
_INDEX = tuple(_NAMES.values())
KEYS = KnownKeys(
    "minimax_m3",
    (
        *(key for key in DECODER if key != "hidden_act"),
        *(key for key in ROUTED if key != "moe_layer_freq"),
        *_INDEX,
        *OUTER,
        _SPARSE_CONFIG,
        "dense_intermediate_size",
        "layer_types",
        "mlp_layer_types",
        "moe_layer_freq",
        "partial_rotary_factor",
        "rotary_dim",
        "shared_intermediate_size",
        "swiglu_alpha",
        "swiglu_limit",
    ),
    {
        **DECODER_OFF,
        # The gate's own function, see ClampedGate
        "hidden_act": one_of("silu", "swigluoai"),
        **ignored("img_token_compression_config", "multimodal_projector_bias", "num_mtp_modules"),
        **ignored("image_grid_pinpoints", "image_seq_length", "process_image_mode"),
        **ignored("projector_hidden_act", "vision_feature_layer"),
        **ignored("vision_feature_select_strategy", "mtp_transformer_layers", "use_mtp"),
        **ignored("merged_hidden_size"),
        "qk_norm_type": one_of("per_head"),
        "use_gemma_norm": one_of(True),
        "use_qk_norm": one_of(True),
        "use_routing_bias": one_of(True),
    },
)
_DEFAULTS = {
    "dense_intermediate_size": 12288,
    "head_dim": 128,
    "index_block_size": 128,
    "index_head_dim": 128,
    "index_local_blocks": 1,
    "index_n_heads": 4,
    "index_topk_blocks": 16,
    "moe_intermediate_size": 3072,
    "max_position_embeddings": 524288,
    "n_routed_experts": 128,
    "num_experts_per_tok": 4,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "rotary_dim": 64,
    "routed_scaling_factor": 2.0,
    "shared_intermediate_size": 3072,
}
_BASE = {"rope_theta": 5000000.0}  # if config.json has no rope settings
_KINDS = {"full_attention": False, "minimax_m3_sparse": True}
_EXPERTS = RoutedNames(
    block="block_sparse_moe", bias="e_score_correction_bias", parts=("w1", "w3", "w2")
)


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    given = _flat(config or {})
    keys = ConfigKeys(given, KEYS, _DEFAULTS if given.get("rope_parameters") else _DEFAULTS | _BASE)
    shape, layers = attention_shape(keys), keys.whole("num_hidden_layers")
    chooses = kinds_of_layers(keys, _KINDS) or [False] * layers
    sparse = kinds_of_layers(keys, SPARSE, "mlp_layer_types") or [True] * layers
    blocks, share = _blocks(keys, shape), keys.whole("rotary_dim") / shape.head_dim
    ropes = [partial_rope(keys, shape.head_dim, share=share)] * (layers + sum(chooses))
    gate = ClampedGate(keys.number("swiglu_limit", 7.0), keys.number("swiglu_alpha", 1.702))
    dense = gated_ffw(keys, gate=gate, size=keys.whole("dense_intermediate_size"))
    routed = routed_ffw(
        keys,
        _choice(keys),
        names=_EXPERTS,
        shared=keys.whole("shared_intermediate_size"),
        gate=gate,
        shared_gate=gate,
    )
    parts = list(_parts(chooses))

    def layer(index: int, form: WeightForm) -> nnx.Module:
        of, indexes = parts[index]
        name = f"model.layers.{of}"
        if indexes:
            return BlockIndexer(keys, blocks, name, form)
        return BlockLayer(
            norm_of(keys, f"{name}.input_layernorm", plus_one=True),
            _attention(keys, f"{name}.self_attn", shape, form),
            norm_of(keys, f"{name}.post_attention_layernorm", plus_one=True),
            (routed if sparse[of] else dense)(name, form),
            chooses=chooses[of],
        )

    small = HeadShape(1, keys.whole("index_head_dim"), 0)
    recipe = decoder_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shape=shape,
        ropes=ropes,
        layer=layer,
        plus_one=True,
        others=[small if indexes else None for _, indexes in parts],
        kind=ChoosingDecoder,
    )
    return replace(
        recipe,
        cache=lambda shards: _plain(recipe.cache(shards)),
        choosers=tuple(
            at - 1 if chooses[of] and not indexes else None
            for at, (of, indexes) in enumerate(parts)
        ),
        unused=("mtp.",),
        media=encoders(minimax_vision(keys, values, recipe.embed)),
    )


def _plain(cache: CacheShape) -> CacheShape:
    return replace(cache, chosen=True, plain=True)


def _parts(chooses: Sequence[bool]) -> list[tuple[int, bool]]:
    """Each layer's number in the checkpoint, and whether it is the part that chooses."""
    return [(at, part) for at, its in enumerate(chooses) for part in ((True, False)[not its :])]


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json by the reference's names. Raises CheckpointError."""
    names = {"num_local_experts": "n_routed_experts"}
    made = {names.get(key, key): value for key, value in config.items()}
    if "intermediate_size" in made:
        made["moe_intermediate_size"] = made["intermediate_size"]
    if isinstance(made.get("moe_layer_freq"), list):  # a flag for each layer
        made["mlp_layer_types"] = [
            "sparse" if its else "dense" for its in made.pop("moe_layer_freq")
        ]
    given = made.pop(_SPARSE_CONFIG, None) or {}
    frequent = given.get("sparse_attention_freq")
    unknown = given.keys() - {*_NAMES, "sparse_attention_freq", *_SWITCHES}
    wrong = [key for key, value in _SWITCHES.items() if given.get(key, value) != value]
    if unknown or wrong:
        raise CheckpointError(
            f"config.json has {', '.join(sorted([*unknown, *wrong]))} in {_SPARSE_CONFIG}, which "
            "the minimax_m3 family does not compute"
        )
    if frequent is not None and made.get("layer_types") is None:
        made["layer_types"] = ["minimax_m3_sparse" if its else "full_attention" for its in frequent]
    return made | {own: given[name] for name, own in _NAMES.items() if name in given}


_SWITCHES = {"use_sparse_attention": True, "sparse_score_type": "max"}


def _blocks(keys: ConfigKeys, shape: AttentionShape) -> ChosenBlocks:
    """Raises CheckpointError."""
    heads, size = keys.whole("index_n_heads"), keys.whole("index_head_dim")
    if shape.heads % heads or size < keys.whole("rotary_dim"):
        raise CheckpointError(
            f"config.json has index_n_heads = {heads} and index_head_dim = {size}; the minimax_m3 "
            f"family needs a divisor of {shape.heads} heads, and a size of at least rotary_dim = "
            f"{keys.get('rotary_dim')}"
        )
    return ChosenBlocks(
        keys.whole("index_block_size"),
        keys.whole("index_topk_blocks"),
        keys.whole("index_local_blocks", least=0),
    )


def _choice(keys: ConfigKeys) -> GroupedSigmoidChoice:
    keys.only("scoring_func", "sigmoid")
    scale = keys.number("routed_scaling_factor")
    count = checked_count(keys, keys.whole("n_routed_experts"))
    return GroupedSigmoidChoice(count, 1, 1, normalised=True, scale=scale)


def _attention(
    keys: ConfigKeys, name: str, shape: AttentionShape, form: WeightForm
) -> BlockAttention:
    epsilon = keys.number("rms_norm_eps")
    q_norm, k_norm = (
        RmsNorm(shape.head_dim, (f"{name}.{part}_norm.weight",), epsilon=epsilon, plus_one=True)
        for part in "qk"
    )
    sources = AttentionSources.hugging_face(name)
    return BlockAttention(shape, sources, form, q_norm=q_norm, k_norm=k_norm)


FAMILY = Family(
    "minimax_m3",
    ("minimax_m3_vl_text", "minimax_m3_vl"),
    "MiniMax-M3",
    configure,
    own_types_only=True,
)
