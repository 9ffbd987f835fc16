"""Qwen4: Qwen3.5's layers over several residual streams, with a table of n-grams; only read.

A file has one table of n-grams, outside the layers, and the constants of its hashes. Here those
follow from config.json, so they are compared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from model_server.checkpoints.gguf.architecture import (
    Config,
    JoinedPlace,
    TensorPlace,
    optional,
    place,
)
from model_server.checkpoints.gguf.architectures.qwen import QWEN35MOE
from model_server.checkpoints.gguf.facts import Facts, Key
from model_server.checkpoints.gguf.heads import FULL
from model_server.checkpoints.ngram_hashes import ngram_hashes
from sax.errors import CheckpointError

_TABLE = "per_layer_token_embd"
_RATIOS, _LAYERS = "attention.compress_ratios", "ple.layers"


def _attends(config: Config, layer: int) -> bool:
    return config["layer_types"][layer] == FULL


def _recalls(config: Config, layer: int) -> bool:
    return layer + 1 in config["ple_layer_ids"]


def _read(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    more = QWEN35MOE.more_config(facts, config)
    rope = {"rope_type": "default", **(more.pop("rope_scaling") or {})}
    for key in ("partial_rotary_factor", "rope_theta"):
        rope[key] = more.pop(key)
    sections = facts.listed("rope.dimension_sections", 3)
    return {
        **more,
        **_read_ngrams(facts, config),
        "indexer_compress_ratio": _ratio(facts, more["layer_types"]),
        "rope_parameters": rope | {"mrope_interleaved": True, "mrope_section": sections},
    }


def _ratio(facts: Facts, kinds: list[str]) -> int:
    """Return the tokens of a block, in the layers that attend. Raises CheckpointError."""
    given = facts.listed(_RATIOS, len(kinds))
    found = {ratio for ratio, kind in zip(given, kinds, strict=True) if kind == FULL} or {1}
    rest = {ratio for ratio, kind in zip(given, kinds, strict=True) if kind != FULL}
    if len(found) != 1 or rest - {0} or type(ratio := found.pop()) is not int or ratio < 1:
        raise CheckpointError(
            f"its {_RATIOS} is {given}; supported is one number above 0 for all layers that "
            "attend, and 0 for the others"
        )
    return ratio


def _read_ngrams(facts: Facts, config: dict[str, Any]) -> dict[str, Any]:
    if (given := facts.get_any(_LAYERS)) is None:
        return {"ple_layer_ids": []}
    (layer,) = facts.listed(_LAYERS, 1)
    if len(given) != 1 or type(layer) is not int or not 0 <= layer < config["num_hidden_layers"]:
        raise CheckpointError(f"its {_LAYERS} is {given}; supported is one layer with n-grams")
    tokens, heads = facts.whole("ple.ngram_size"), facts.whole("ple.heads_per_ngram")
    table = {
        "heads_per_ngram": heads,
        # Whatever divided it, this many rows are a multiple of themselves.
        "make_ngram_vocab_size_divisible_by": facts.rows(f"{_TABLE}.weight"),
        "ngram_size": tokens,
        "ngram_vocab_size_base": facts.listed("ple.head_vocab_sizes", 1)[0],
    }
    _check_hashes(facts, table | {"vocab_size": config["vocab_size"]})
    return {
        **table,
        **_read_tokens(facts, config["eos_token_id"]),
        "ple_conv_kernel_size": facts.whole("ple.conv_kernel"),
        "ple_embed_dim": (tokens - 1) * heads * facts.whole("embedding_length_per_layer_input"),
        "ple_layer_ids": [layer + 1],
        "split_ngram_parts": 1,
    }


def _check_hashes(facts: Facts, config: Config) -> None:
    """Raise CheckpointError for other hashes than the published seed makes."""
    (hashes,) = ngram_hashes(config, 1)
    wanted = {
        "ple.layer_multipliers": hashes.multipliers,
        "ple.head_offsets": hashes.offsets,
        "ple.head_vocab_sizes": hashes.sizes,
    }
    for key, numbers in wanted.items():
        if (given := facts.listed(key, len(numbers))) != list(numbers):
            raise CheckpointError(
                f"its {key} is {given}; the published seed makes {list(numbers)}, which are the "
                "only ones computed here: use the model's Hugging Face folder"
            )
    if hashes.rows != config["make_ngram_vocab_size_divisible_by"]:
        raise CheckpointError(
            f"its {_TABLE}.weight has {config['make_ngram_vocab_size_divisible_by']} rows, fewer "
            f"than the {sum(hashes.sizes)} of its hashes"
        )


def _read_tokens(facts: Facts, ends: int | None) -> dict[str, Any]:
    """Return the token that separates n-grams, before the one that ends texts, and of images."""
    separator = facts.value(Key("eos_token_id", "ple.eos_token_id", least=0))
    image = facts.value(Key("image_token_id", "ple.image_token_id", default=None, least=0))
    told = {"eos_token_id": separator if ends in (None, separator) else [separator, ends]}
    return told if image is None else told | {"image_token_id": image}


def _streams(stem: str, name: str) -> dict[str, TensorPlace]:
    return {
        f"{stem}_norm": place(f"{name}.hc_norm", plus=1.0),
        f"{stem}_down": place(f"{name}.input_mix_weight_down"),
        f"{stem}_up": place(f"{name}.input_mix_weight_up"),
    }


def _inside(stem: str, name: str) -> dict[str, TensorPlace]:
    return {**_streams(stem, name), f"{stem}_inject": place(f"{name}.block_inject_weight")}


_NGRAMS = {
    "ple_conv1d": place("ple.conv1d", filters=True, needed=_recalls),
    "ple_key": place("ple.key_proj", needed=_recalls),
    "ple_value": place("ple.value_proj", needed=_recalls),
    **{
        f"ple_norm_{of}": place(f"ple.norm_{of}", plus=1.0, needed=_recalls)
        for of in ("conv", "key", "query")
    },
}
_NORMS = ("attn_norm", "post_attention_norm")  # of Qwen3.5's layers: here streams have norms
_INDEXER = "self_attn.indexer"
QWEN4_EXP = replace(
    QWEN35MOE,
    name="qwen4exp",
    model_types={"qwen4_exp_text": "Qwen4ExpForCausalLM"},
    tensors={
        "token_embd": place("model.embed_tokens"),
        "output": place("lm_head", needed=optional),
        **_streams("output_hc", "model.hyper_connection_mixer"),
        _TABLE: place(
            "model.layers.{layer}.ple.ple_embedding.ngram_embedding.shard_0",
            layer=lambda config: config["ple_layer_ids"][0] - 1,
            needed=lambda config, layer: bool(config["ple_layer_ids"]),
        ),
    },
    layer_tensors={
        **{stem: at for stem, at in QWEN35MOE.layer_tensors.items() if stem not in _NORMS},
        **_inside("hc_attn", "attn_hyper_connection"),
        **_inside("hc_ffn", "mlp_hyper_connection"),
        "indexer.q_norm": place(f"{_INDEXER}.q_layernorm", plus=1.0, needed=_attends),
        "indexer.k_norm": place(f"{_INDEXER}.k_layernorm", plus=1.0, needed=_attends),
        **_NGRAMS,
    },
    joined=(
        JoinedPlace(
            name=f"{_INDEXER}.index_qk_proj.weight",
            parts=("indexer.q_proj.weight", "indexer.k_proj.weight"),
            needed=_attends,
        ),
    ),
    keys=(
        *QWEN35MOE.keys,
        Key("hc_count", "hyper_connection.count"),
        Key("hc_lowrank", "hyper_connection.low_rank"),
        Key("indexer_budget", "attention.indexer.top_k"),
        Key("indexer_head_dim", "attention.indexer.key_length"),
        Key("indexer_n_heads", "attention.indexer.head_count"),
    ),
    fixed={
        **QWEN35MOE.fixed,
        "experts_apart": True,
        "indexer_kv_heads": 1,
        "norm_topk_prob": True,
        "output_gate_type": "silu",
    },
    more_config=_read,
)
