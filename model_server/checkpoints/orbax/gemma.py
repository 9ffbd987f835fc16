"""Gemma 1, 2 and 3 as Google publishes them for Flax.

Shape letters: D model, H query heads, K key heads, Q head size, F ffw. Versions differ in the order
of the gate's axes and in the number of norms per layer. Gemma 3's vision tower is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from model_server.checkpoints.orbax.dialect import Config, Dialect, Part, Rule, Shape

_PREFIX = r"(?:transformer/)?"
_LAYER = _PREFIX + r"layer_(?P<layer>\d+)/"
_GATE = re.compile(_LAYER + r"mlp/gating_einsum(?:/w)?")


def _rules(config: Config, shapes: Mapping[str, Shape]) -> tuple[Rule, ...]:
    config = config.get("text_config") or config
    vocab = config.get("vocab_size")  # Google pads the embedding
    return (
        Rule(
            _PREFIX + "embedder/input_embedding",
            (Part("model.embed_tokens.weight", ((0,), (1,)), rows=vocab),),
        ),
        Rule(_PREFIX + "final_norm/scale", (Part("model.norm.weight", ((0,),)),)),
        *_attention(),
        *_feed_forward(config, shapes),
        *_norms(config),
    )


def _attention() -> tuple[Rule, ...]:
    return (
        # [H, D, Q]
        _rule(r"attn/q_einsum/w", Part(_attn("q_proj"), ((0, 2), (1,)))),
        # [2, K, D, Q]
        _rule(
            r"attn/kv_einsum/w",
            *(
                Part(_attn(name), ((1, 3), (2,)), take=((0, index),))
                for index, name in enumerate(("k_proj", "v_proj"))
            ),
        ),
        # [3, H, D, Q]
        _rule(
            r"attn/qkv_einsum/w",
            *(
                Part(_attn(name), ((1, 3), (2,)), take=((0, index),))
                for index, name in enumerate(("q_proj", "k_proj", "v_proj"))
            ),
        ),
        # [H, Q, D]
        _rule(r"attn/attn_vec_einsum/w", Part(_attn("o_proj"), ((2,), (0, 1)))),
        _rule(r"attn/_query_norm/scale", Part(_attn("q_norm"), ((0,),))),
        _rule(r"attn/_key_norm/scale", Part(_attn("k_norm"), ((0,),))),
    )


def _feed_forward(config: Config, shapes: Mapping[str, Shape]) -> tuple[Rule, ...]:
    gates = (shape for path, shape in shapes.items() if _GATE.fullmatch(path))
    model_first = next(gates, (0, 0, 0))[1] == config.get("hidden_size")
    dims = ((2,), (1,)) if model_first else ((1,), (2,))  # [2, D, F] or [2, F, D]
    return (
        _rule(
            r"mlp/gating_einsum(?:/w)?",
            Part(_layer("mlp.gate_proj"), dims, take=((0, 0),)),
            Part(_layer("mlp.up_proj"), dims, take=((0, 1),)),
        ),
        _rule(r"mlp/linear(?:/w)?", Part(_layer("mlp.down_proj"), ((1,), (0,)))),  # [F, D]
    )


def _norms(config: Config) -> tuple[Rule, ...]:
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
        _rule(f"{ours}/scale", Part(_layer(name), ((0,),))) for ours, name in names.items()
    )


def _rule(pattern: str, *parts: Part) -> Rule:
    return Rule(_LAYER + pattern, parts)


def _layer(name: str) -> str:
    return "model.layers.{layer}." + name + ".weight"


def _attn(name: str) -> str:
    return _layer(f"self_attn.{name}")


GEMMA = Dialect(
    "Google's Gemma for Flax",
    _PREFIX + "embedder/input_embedding",
    _rules,
    ignored=(r"SigLiPFromPatches_0/.*", r"vision_encoder/.*", _PREFIX + r"embedder/mm_.*"),
)
