"""What MaxText trains, and Google's Gemma for Flax: names and shapes of their Orbax arrays.

Shape letters: D model, H query heads, K key heads, Q head size, F ffw, L layers, E experts.

MaxText: Llama, Mistral, Mixtral and Qwen 3, with scanned or separate layers. Scanned arrays have
the layers as their second axis. Unless queries are normalised, MaxText folds the attention scale
1/sqrt(Q) into the query weights. With Llama 3.1's rotary scaling, the dimensions of a rotary pair
are neighbours.

Gemma 1, 2 and 3: versions differ in the order of the gate's axes and in the number of norms per
layer. Gemma 3's vision tower is ignored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

from model_server.checkpoints.orbax.dialect import Config, Dialect, Part, Rule, Shape
from sax.errors import CheckpointError

_KNOWN = ("llama", "mistral", "mixtral", "qwen3")


def _rules(config: Config, shapes: Mapping[str, Shape]) -> tuple[Rule, ...]:
    if config.get("model_type") not in _KNOWN:
        raise CheckpointError(
            f"a MaxText checkpoint of a {config.get('model_type')!r} model cannot be read; "
            f"supported are {', '.join(_KNOWN)}. MaxText's own converter writes Hugging Face "
            "folders"
        )
    vocab = config.get("vocab_size")  # MaxText may pad the embedding
    inside = {**_attention(config), **_feed_forward(), **_norms()}
    layers = [rule for pattern, part in inside.items() for rule in _both(pattern, part)]
    return (
        Rule(
            "token_embedder/embedding",
            (Part("model.embed_tokens.weight", ((0,), (1,)), rows=vocab),),
        ),
        Rule("decoder/decoder_norm/scale", (Part("model.norm.weight", ((0,),)),)),
        Rule(
            "decoder/logits_dense/kernel", (Part("lm_head.weight", ((1,), (0,)), rows=vocab),)
        ),  # [D, V]
        *layers,
    )


def _attention(config: Config) -> dict[str, Part]:
    """Unscanned shapes: [D, H, Q], [D, K, Q] and [H, Q, D]."""
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    scale = 1.0 if config["model_type"] == "qwen3" else math.sqrt(size)
    scaling = config.get("rope_scaling") or {}
    paired = (scaling.get("rope_type") or scaling.get("type")) == "llama3"
    merged = ((1, 2), (0,))
    return {
        "self_attention/query/kernel": Part(_attn("q_proj"), merged, scale=scale, paired=paired),
        "self_attention/key/kernel": Part(_attn("k_proj"), merged, paired=paired),
        "self_attention/value/kernel": Part(_attn("v_proj"), merged),
        "self_attention/out/kernel": Part(_attn("o_proj"), ((2,), (0, 1))),
        "self_attention/query_norm/scale": Part(_attn("q_norm"), ((0,),)),
        "self_attention/key_norm/scale": Part(_attn("k_norm"), ((0,),)),
    }


def _feed_forward() -> dict[str, Part]:
    """Unscanned shapes: [in, out], and [E, in, out] for experts."""
    turned, experts = ((1,), (0,)), ((2,), (1,))
    every = (("expert", 0),)
    expert = "block_sparse_moe.experts.{expert}."
    return {
        "mlp/wi_0/kernel": Part(_layer("mlp.gate_proj"), turned),
        "mlp/wi_1/kernel": Part(_layer("mlp.up_proj"), turned),
        "mlp/wo/kernel": Part(_layer("mlp.down_proj"), turned),
        "MoeBlock_0/gate/kernel": Part(_layer("block_sparse_moe.gate"), turned),
        "MoeBlock_0/wi_0": Part(_layer(expert + "w1"), experts, each=every),
        "MoeBlock_0/wi_1": Part(_layer(expert + "w3"), experts, each=every),
        "MoeBlock_0/wo": Part(_layer(expert + "w2"), experts, each=every),
    }


def _norms() -> dict[str, Part]:
    return {
        "pre_self_attention_layer_norm/scale": Part(_layer("input_layernorm"), ((0,),)),
        "post_self_attention_layer_norm/scale": Part(_layer("post_attention_layernorm"), ((0,),)),
    }


def _both(pattern: str, part: Part) -> tuple[Rule, Rule]:
    """Return the rules for separate layers and for scanned ones, stacked along axis 1."""
    return (
        Rule(r"decoder/layers_(?P<layer>\d+)/" + pattern, (part,)),
        Rule(f"decoder/layers/{pattern}", (_scanned(part),)),
    )


def _scanned(part: Part) -> Part:
    dims = tuple(tuple(axis + (axis >= 1) for axis in axes) for axes in part.dims)
    return replace(part, dims=dims, each=(*part.each, ("layer", 1)))


def _layer(name: str) -> str:
    return "model.layers.{layer}." + name + ".weight"


def _attn(name: str) -> str:
    return _layer(f"self_attn.{name}")


MAXTEXT = Dialect("MaxText", r"decoder/layers(_\d+)?/self_attention/query/kernel", _rules)


_PREFIX = r"(?:transformer/)?"
_LAYER = _PREFIX + r"layer_(?P<layer>\d+)/"
_GATE = re.compile(_LAYER + r"mlp/gating_einsum(?:/w)?")


def _gemma_rules(config: Config, shapes: Mapping[str, Shape]) -> tuple[Rule, ...]:
    config = config.get("text_config") or config
    vocab = config.get("vocab_size")  # Google pads the embedding
    return (
        Rule(
            _PREFIX + "embedder/input_embedding",
            (Part("model.embed_tokens.weight", ((0,), (1,)), rows=vocab),),
        ),
        Rule(_PREFIX + "final_norm/scale", (Part("model.norm.weight", ((0,),)),)),
        *_gemma_attention(),
        *_gemma_feed_forward(config, shapes),
        *_gemma_norms(config),
    )


def _gemma_attention() -> tuple[Rule, ...]:
    return (
        # [H, D, Q]
        _rule(r"attn/q_einsum/w", Part(_gemma_attn("q_proj"), ((0, 2), (1,)))),
        # [2, K, D, Q]
        _rule(
            r"attn/kv_einsum/w",
            *(
                Part(_gemma_attn(name), ((1, 3), (2,)), take=((0, index),))
                for index, name in enumerate(("k_proj", "v_proj"))
            ),
        ),
        # [3, H, D, Q]
        _rule(
            r"attn/qkv_einsum/w",
            *(
                Part(_gemma_attn(name), ((1, 3), (2,)), take=((0, index),))
                for index, name in enumerate(("q_proj", "k_proj", "v_proj"))
            ),
        ),
        # [H, Q, D]
        _rule(r"attn/attn_vec_einsum/w", Part(_gemma_attn("o_proj"), ((2,), (0, 1)))),
        _rule(r"attn/_query_norm/scale", Part(_gemma_attn("q_norm"), ((0,),))),
        _rule(r"attn/_key_norm/scale", Part(_gemma_attn("k_norm"), ((0,),))),
    )


def _gemma_feed_forward(config: Config, shapes: Mapping[str, Shape]) -> tuple[Rule, ...]:
    gates = (shape for path, shape in shapes.items() if _GATE.fullmatch(path))
    model_first = next(gates, (0, 0, 0))[1] == config.get("hidden_size")
    dims = ((2,), (1,)) if model_first else ((1,), (2,))  # [2, D, F] or [2, F, D]
    return (
        _rule(
            r"mlp/gating_einsum(?:/w)?",
            Part(_gemma_layer("mlp.gate_proj"), dims, take=((0, 0),)),
            Part(_gemma_layer("mlp.up_proj"), dims, take=((0, 1),)),
        ),
        _rule(r"mlp/linear(?:/w)?", Part(_gemma_layer("mlp.down_proj"), ((1,), (0,)))),  # [F, D]
    )


def _gemma_norms(config: Config) -> tuple[Rule, ...]:
    # Gemma 1 has no norm after attention, and Hugging Face calls its pre-feed-forward norm
    # post_attention_layernorm.
    first = config.get("model_type") == "gemma"
    names = {
        "pre_attention_norm": "input_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "pre_ffw_norm": "post_attention_layernorm" if first else "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
    return tuple(
        _rule(f"{ours}/scale", Part(_gemma_layer(name), ((0,),))) for ours, name in names.items()
    )


def _rule(pattern: str, *parts: Part) -> Rule:
    return Rule(_LAYER + pattern, parts)


def _gemma_layer(name: str) -> str:
    return "model.layers.{layer}." + name + ".weight"


def _gemma_attn(name: str) -> str:
    return _gemma_layer(f"self_attn.{name}")


GEMMA = Dialect(
    "Google's Gemma for Flax",
    _PREFIX + "embedder/input_embedding",
    _gemma_rules,
    ignored=(r"SigLiPFromPatches_0/.*", r"vision_encoder/.*", _PREFIX + r"embedder/mm_.*"),
)
