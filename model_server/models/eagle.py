"""EAGLE-3 heads: checkpoints of one layer that drafts for a model whose hidden states it reads.

Source: Li et al. 2025 (arXiv:2503.01840); names of tensors and keys are those of the authors and of
SpecForge. A head reads the inputs of the third layer, the middle one and the third last, unless
config.json lists others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from flax import nnx

from model_server.models.config_keys import ConfigKeys
from model_server.models.draft_heads import head_recipe
from model_server.models.families.decoder_recipe import gated_ffw, norm_of
from model_server.models.families.llama import attention_shape
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored, one_of
from model_server.models.layers.attention import Attention, AttentionSources
from model_server.models.layers.decoder import Decoder
from model_server.models.layers.draft_head import EagleHead, EagleLayer
from model_server.models.layers.layers import Embedding, Linear
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Recipe, head_cache
from model_server.models.weights.quantization import parse_quantize
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

_LAYERS = "eagle_aux_hidden_state_layer_ids"
KEYS = KnownKeys(
    "EAGLE-3",
    (*DECODER, "draft_vocab_size", "eagle_config", "target_hidden_size", "attention_bias"),
    {
        **DECODER_OFF,
        **ignored("max_window_layers", "mlp_bias", "target_model_type"),
        "layer_types": lambda value: True,
        "norm_before_fc": one_of(False),
        "norm_before_residual": one_of(False),
        "sliding_window": lambda value: True,
        "use_sliding_window": one_of(False),
    },
)
_OWN_TABLE = "embed_tokens.weight"


def is_eagle(config: Mapping[str, Any] | None) -> bool:
    """Return True for config.json of an EAGLE-3 head."""
    if config is None:
        return False
    named = str(config.get("architectures"))
    return "Eagle3" in named or "draft_vocab_size" in config or "speculators_model_type" in config


def eagle_recipe(
    recipe: Recipe, config: Mapping[str, Any], names: Collection[str]
) -> tuple[Recipe, tuple[int, ...]]:
    """Return a head's recipe, and the layers of the model before which it reads the stream.

    recipe: of the model. names: of the head's tensors; without an embedding of its own it has the
    model's. Raises CheckpointError.
    """
    if "speculators_model_type" in config:
        raise CheckpointError(
            "config.json is in the format of speculators, which is not read yet: name a head in "
            "the format of EAGLE-3's authors or of SpecForge"
        )
    keys = ConfigKeys(config, KEYS)
    _check(recipe, keys)
    embed, read = keys.whole("hidden_size"), _layers_read(recipe, keys)
    shape = replace(attention_shape(keys), reads=2 * embed)
    rope, ffw = rope_of(keys.all, shape.head_dim), gated_ffw(keys)
    outputs, biased = keys.whole("draft_vocab_size", recipe.vocab), keys.flag("attention_bias")
    table = _OWN_TABLE if _OWN_TABLE in names else "model.embed_tokens.weight"

    def layer(form: WeightForm) -> EagleLayer:
        sources = AttentionSources.hugging_face("midlayer.self_attn", biased=biased)
        return EagleLayer(
            norm_of(keys, "midlayer.input_layernorm"),
            norm_of(keys, "midlayer.hidden_norm"),
            Attention(shape, sources, form),
            norm_of(keys, "midlayer.post_attention_layernorm"),
            ffw("midlayer", form),
        )

    def build(form: WeightForm) -> EagleHead:
        inputs = len(read) * recipe.embed
        return EagleHead(
            embedding=Embedding(recipe.vocab, embed, (table,), form=form),
            fusion=Linear(embed, inputs, ("embed", None), ("fc.weight",), form=form),
            layer=layer(form),
            rope=rope,
            final_norm=norm_of(keys, "norm"),
            head=Linear(outputs, embed, ("vocab", "embed"), ("lm_head.weight",), form=form),
            offsets=outputs != recipe.vocab,
            outputs=outputs,
        )

    cache = head_cache(
        layers=1, heads=shape.heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim
    )
    made = head_recipe(recipe, build, cache)
    scheme = recipe.speculation.draft_quantize
    quantize = None if scheme is None else parse_quantize(scheme)
    return replace(made, unused=("t2d",), quantize=quantize), read


def _check(recipe: Recipe, keys: ConfigKeys) -> None:
    """Raise CheckpointError if the head is not one of this model, or has parts of other kinds."""
    for key, wanted in (("vocab_size", recipe.vocab), ("hidden_size", recipe.embed)):
        if keys.whole(key) != wanted:
            raise CheckpointError(
                f"config.json has {key} = {keys.whole(key)} and the model {wanted}: name a head of "
                "this model"
            )
    if keys.whole("num_hidden_layers", 1) != 1:
        raise CheckpointError("config.json has several layers: EAGLE-3 heads here have one")
    if keys.whole("target_hidden_size", recipe.embed) != recipe.embed:
        raise CheckpointError("config.json has the target_hidden_size of another model")
    if keys.flag("tie_word_embeddings"):
        raise CheckpointError("config.json ties the output layer of the head to its embedding")
    module = nnx.eval_shape(lambda: recipe.build(WeightForm()))
    if not isinstance(module, Decoder) or type(module).run is not Decoder.run:
        raise CheckpointError(
            f"this model ({type(module).__name__}) shows no hidden states between its layers: "
            "publish it without DRAFT_MODEL"
        )


def _layers_read(recipe: Recipe, keys: ConfigKeys) -> tuple[int, ...]:
    """Return the layers before which the stream is read. Raises CheckpointError."""
    layers = recipe.cache(1).layers
    given = keys.get("eagle_config") or {}
    listed = given.get(_LAYERS) if isinstance(given, Mapping) else None
    if listed is None:
        read = (2, layers // 2, layers - 3)
    else:  # those behind which it is read
        read = tuple(int(each) + 1 for each in listed)
    if not read or not all(0 <= each < layers for each in read):
        raise CheckpointError(
            f"the head reads the model before layers {', '.join(map(str, read))}, and the model "
            f"has {layers}: name a head of this model"
        )
    return read
