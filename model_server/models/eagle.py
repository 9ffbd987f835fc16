"""EAGLE-3 heads: checkpoints of a few layers that draft for a model whose hidden states they read.

Source: Li et al. 2025 (arXiv:2503.01840). Names of tensors and keys are those of the authors and of
SpecForge, or of the speculators library. A head reads the inputs of the third layer, the middle one
and the third last, unless config.json lists others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from flax import nnx

from model_server.models.config_keys import ConfigKeys
from model_server.models.draft_heads import head_recipe
from model_server.models.families.decoder_recipe import BuildAttention, gated_ffw, norm_of
from model_server.models.families.llama import attention_shape
from model_server.models.families.own_heads import drafting_layer
from model_server.models.families.qwen3 import normed_attention
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored, one_of
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.decoder import Decoder
from model_server.models.layers.draft_head import EagleHead, EagleLayer
from model_server.models.layers.layers import Embedding, Linear, RmsNorm
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Recipe, head_cache
from model_server.models.weights.quantization import parse_quantize
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

_LIBRARY = "speculators_model_type"
_LAYERS = "eagle_aux_hidden_state_layer_ids"
_OF_HEAD = ("draft_vocab_size", "norm_before_fc", "norm_before_residual", "target_hidden_size")
KEYS = KnownKeys(
    "EAGLE-3",
    (*DECODER, *_OF_HEAD, "attention_bias", "eagle_config", "model_type", _LAYERS, _LIBRARY),
    {
        **DECODER_OFF,
        **ignored("embed_requires_grad", "enable_sp_ulysses", "has_no_defaults_at_init"),
        **ignored("speculators_config", "speculators_version"),
        **ignored("max_window_layers", "mlp_bias", "target_model_type"),
        "layer_types": lambda value: True,
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
    return "Eagle3" in named or "draft_vocab_size" in config or _LIBRARY in config


def eagle_recipe(
    recipe: Recipe, config: Mapping[str, Any], names: Collection[str]
) -> tuple[Recipe, tuple[int, ...]]:
    """Return a head's recipe, and the layers of the model before which it reads the stream.

    recipe: of the model. names: of the head's tensors; without an embedding of its own it has the
    model's. Raises CheckpointError.
    """
    keys = ConfigKeys(config, KEYS)
    _check(recipe, keys)
    embed, read = keys.whole("hidden_size"), _layers_read(recipe, keys)
    shape, prefixes = attention_shape(keys), _prefixes(keys, names)
    rope, ffw, attention = rope_of(keys.all, shape.head_dim), gated_ffw(keys), _attention(keys)
    outputs = keys.whole("draft_vocab_size", recipe.vocab)
    table = _OWN_TABLE if _OWN_TABLE in names else "model.embed_tokens.weight"

    def layer(prefix: str, form: WeightForm) -> EagleLayer:
        return EagleLayer(
            norm_of(keys, f"{prefix}.input_layernorm"),
            norm_of(keys, f"{prefix}.hidden_norm"),
            attention(prefix, replace(shape, reads=2 * embed), form),
            norm_of(keys, f"{prefix}.post_attention_layernorm"),
            ffw(prefix, form),
            adds_to_norm=keys.flag("norm_before_residual"),
        )

    def build(form: WeightForm) -> EagleHead:
        inputs, usual = len(read) * recipe.embed, drafting_layer(keys, attention, shape, ffw)
        return EagleHead(
            embedding=Embedding(recipe.vocab, embed, (table,), form=form),
            fusion_norm=_fusion_norm(keys, inputs),
            fusion=Linear(embed, inputs, ("embed", None), ("fc.weight",), form=form),
            layer=layer(prefixes[0], form),
            further=[usual(prefix, form) for prefix in prefixes[1:]],
            rope=rope,
            final_norm=norm_of(keys, "norm"),
            head=Linear(outputs, embed, ("vocab", "embed"), ("lm_head.weight",), form=form),
            offsets=outputs != recipe.vocab,
            outputs=outputs,
        )

    cache = head_cache(
        layers=1, heads=shape.heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim
    )
    made = head_recipe(recipe, build, cache, len(prefixes))
    scheme = recipe.speculation.draft_quantize
    quantize = None if scheme is None else parse_quantize(scheme)
    unused = ("t2d", "verifier_") if outputs != recipe.vocab else ("t2d", "d2t", "verifier_")
    return replace(made, unused=unused, quantize=quantize), read


def _prefixes(keys: ConfigKeys, names: Collection[str]) -> list[str]:
    """Return the prefixes of the layers' tensors: the authors call the first one midlayer."""
    numbered = keys.get(_LIBRARY) is not None or any(name.startswith("layers.0.") for name in names)
    count = keys.whole("num_hidden_layers", 1)
    return ["layers.0" if numbered else "midlayer", *(f"layers.{at}" for at in range(1, count))]


def _attention(keys: ConfigKeys) -> BuildAttention:
    if keys.get("model_type") == "qwen3":
        return normed_attention(keys)
    biased = keys.flag("attention_bias")

    def build(prefix: str, shape: AttentionShape, form: WeightForm) -> Attention:
        sources = AttentionSources.hugging_face(f"{prefix}.self_attn", biased=biased)
        return Attention(shape, sources, form)

    return build


def _fusion_norm(keys: ConfigKeys, inputs: int) -> RmsNorm | None:
    if not keys.flag("norm_before_fc"):
        return None
    return RmsNorm(inputs, ("input_norm.weight",), epsilon=keys.number("rms_norm_eps", 1e-6))


def _check(recipe: Recipe, keys: ConfigKeys) -> None:
    """Raise CheckpointError if the head is not one of this model, or has parts of other kinds."""
    for key, wanted in (("vocab_size", recipe.vocab), ("hidden_size", recipe.embed)):
        if keys.whole(key) != wanted:
            raise CheckpointError(
                f"config.json has {key} = {keys.whole(key)} and the model {wanted}: name a head of "
                "this model"
            )
    if keys.whole("target_hidden_size", recipe.embed) != recipe.embed:
        raise CheckpointError("config.json has the target_hidden_size of another model")
    if keys.get(_LIBRARY, "eagle3") != "eagle3":
        raise CheckpointError(
            f"config.json has {_LIBRARY} = {keys.get(_LIBRARY)!r}; of that library eagle3 is read: "
            "name such a head, or a draft model"
        )
    # The library copies it from the model; its heads have an output layer.
    if keys.get(_LIBRARY) is None and keys.flag("tie_word_embeddings"):
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
    behind = given.get(_LAYERS) if isinstance(given, Mapping) else None
    if (listed := keys.get(_LAYERS)) is not None:
        read = tuple(int(each) for each in listed)
    elif behind is not None:
        read = tuple(int(each) + 1 for each in behind)
    else:
        read = (2, layers // 2, layers - 3)
    if not read or not all(0 <= each < layers for each in read):
        raise CheckpointError(
            f"the head reads the model before layers {', '.join(map(str, read))}, and the model "
            f"has {layers}: name a head of this model"
        )
    return read
