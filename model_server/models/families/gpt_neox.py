"""GPT-NeoX, Pythia: parallel halves, each behind its own norm; part of each head is rotated.

Source: Black et al. 2022 (arXiv:2204.06745), Biderman et al. 2023 (arXiv:2304.01373); names and
config keys are those of Hugging Face's `GPTNeoXForCausalLM`, which stores q, k, v head by head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flax import nnx

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.gpt2 import divided, norm_of
from model_server.models.families.gptj import biased_ffw
from model_server.models.families.ropes import rotated_part
from model_server.models.known_keys import KnownKeys
from model_server.models.layers.activations import activation_of
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.decoder import Decoder
from model_server.models.layers.layers import Embedding, Linear
from model_server.models.layers.pre_norm import ParallelLayer, PreNormLayer
from model_server.models.layers.rope import Rope, rope_of
from model_server.models.recipe import Family, Recipe, head_cache, serving
from model_server.models.weights.source import GroupRows, Tensor
from model_server.models.weights.weight import WeightForm

KEYS = KnownKeys(
    "gpt_neox",
    (
        "attention_bias",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "layer_norm_eps",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "rotary_emb_base",
        "rotary_pct",
        "tie_word_embeddings",
        "use_parallel_residual",
        "vocab_size",
    ),
    {},
)


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS)
    embed, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    layers, vocab = keys.whole("num_hidden_layers"), keys.whole("vocab_size")
    head_dim = divided(embed, heads)
    shape = AttentionShape(
        embed=embed, heads=heads, kv_heads=heads, head_dim=head_dim, scale=head_dim**-0.5
    )
    ffw, epsilon = keys.whole("intermediate_size"), keys.number("layer_norm_eps", 1e-5)
    activation = activation_of(keys.get("hidden_act", "gelu"))
    biased, rope = keys.flag("attention_bias", True), _rope(keys, head_dim)
    kind = ParallelLayer if keys.flag("use_parallel_residual", True) else PreNormLayer

    def layer(index: int, form: WeightForm) -> nnx.Module:
        prefix = f"gpt_neox.layers.{index}"
        names = f"{prefix}.mlp.dense_h_to_4h", f"{prefix}.mlp.dense_4h_to_h"
        return kind(
            norm_of(embed, f"{prefix}.input_layernorm", epsilon),
            Attention(shape, _attention_sources(f"{prefix}.attention", shape, biased), form),
            norm_of(embed, f"{prefix}.post_attention_layernorm", epsilon),
            biased_ffw(embed, ffw, names, activation, form),
        )

    def build(form: WeightForm) -> Decoder:
        return Decoder(
            embedding=Embedding(vocab, embed, ("gpt_neox.embed_in.weight",), form=form),
            layers=[layer(index, form) for index in range(layers)],
            final_norm=norm_of(embed, "gpt_neox.final_layer_norm", epsilon),
            head=_head(keys, vocab, embed, form),
            ropes=[rope] * layers,
        )

    return Recipe(
        build=build,
        cache=head_cache(layers=layers, heads=heads, kv_heads=heads, head_dim=head_dim),
        embed=embed,
        vocab=vocab,
        short_context=rope.short_context,
        **serving(values, keys.whole("max_position_embeddings", 2048)),
    )


def _attention_sources(prefix: str, shape: AttentionShape, biased: bool) -> AttentionSources:
    size = shape.head_dim

    def part(name: str, index: int) -> GroupRows:
        return GroupRows(
            Tensor(f"{prefix}.query_key_value.{name}"),
            size=3 * size,
            start=index * size,
            stop=(index + 1) * size,
            groups=shape.heads,
        )

    return AttentionSources(
        q=part("weight", 0),
        k=part("weight", 1),
        v=part("weight", 2),
        out=(f"{prefix}.dense.weight",),
        biases=(part("bias", 0), part("bias", 1), part("bias", 2)) if biased else None,
        out_bias=(f"{prefix}.dense.bias",) if biased else None,
    )


def _rope(keys: ConfigKeys, head_dim: int) -> Rope:
    """Rope over part of a head; transformers 5 moved its settings into rope_parameters."""
    moved = dict(keys.get("rope_parameters", {}))
    outside = "rotary_pct"
    name = "partial_rotary_factor" if "partial_rotary_factor" in moved else outside
    share = moved.pop(name, keys.number(outside, 0.25))
    rotated = rotated_part(keys, head_dim, share, name)
    base = keys.get("rotary_emb_base", keys.get("rope_theta"))
    return rope_of({**keys.all, "rope_theta": base, "rope_parameters": moved}, rotated)


def _head(keys: ConfigKeys, vocab: int, embed: int, form: WeightForm) -> Linear | None:
    if keys.flag("tie_word_embeddings"):
        return None
    return Linear(vocab, embed, ("vocab", "embed"), ("embed_out.weight",), form=form)


FAMILY = Family("gpt_neox", ("gpt_neox",), "GPT-NeoX, Pythia", configure)
