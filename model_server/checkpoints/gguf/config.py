"""Converts GGUF metadata to a Hugging Face config.json, and back.

Handles what all architectures share; the rest is in their declarations. Pure. Raises
CheckpointError without a file name, which the caller adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from model_server.checkpoints.gguf.architecture import Config, GgufArchitecture
from model_server.checkpoints.gguf.architectures import ARCHITECTURES
from model_server.checkpoints.gguf.facts import REQUIRED, Facts, Key
from model_server.checkpoints.gguf.header import GgufHeader
from sax.errors import CheckpointError

_DRAFTING = "nextn_predict_layers"
# Metadata that changes nothing, with the values for which this is true (empty: all). Whatever else
# is in a file must be read for its config.json: it may be a factor that the model was trained with.
_HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "decoder_start_token_id": (),
    _DRAFTING: (),
    "rope.scaling.factor": (1.0,),
    "rope.scaling.finetuned": (),
    "rope.scaling.original_context_length": (),
    "rope.scaling.type": ("none",),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_ext_factor": (1.0,),
    "tensor_data_layout": (),
    "vocab_size": (),
}


_POOLINGS = {1: "mean", 2: "cls", 3: "last"}  # of decoders that embed


def architecture_of(header: GgufHeader) -> GgufArchitecture:
    name = header.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise CheckpointError(f"its architecture is {name!r}; supported from GGUF: {known}")
    found = ARCHITECTURES[name]
    return found.other(header.metadata) or found


def architecture_for(config: Config) -> GgufArchitecture:
    """Return the architecture to write a config.json as. Raises CheckpointError."""
    wanted = config.get("model_type")
    for architecture in ARCHITECTURES.values():
        if wanted in architecture.model_types and architecture.more_metadata:
            return architecture
    written = [each for each in ARCHITECTURES.values() if each.more_metadata]
    known = ", ".join(sorted(t for each in written for t in each.model_types))
    raise CheckpointError(f"a {wanted!r} model cannot be written as GGUF; supported: {known}")


def config_of(
    header: GgufHeader,
    architecture: GgufArchitecture,
    torch_dtype: str,
    factors: Mapping[str, np.ndarray] | None = None,
) -> dict[str, Any]:
    """Return the config.json that the model's authors would have written.

    factors: rotary factors by tensor name; GGUF stores this part of the configuration as tensors.
    """
    facts = Facts(header, architecture.name, factors)
    config: dict[str, Any] = {"model_type": next(iter(architecture.model_types))}
    config |= architecture.fixed
    config |= {key.name: facts.value(key) for key in architecture.keys}
    # Blocks of layers that draft come after the others and count as such.
    config[architecture.layer_count] -= drafting_layers(header, architecture)
    layers = config[architecture.layer_count]
    if layers > len(header.tensors):  # before anything allocates a list of that length
        raise CheckpointError(
            f"it announces {layers} layers, but has only {len(header.tensors)} tensors"
        )
    config |= {
        "tie_word_embeddings": not facts.has("output.weight"),
        "vocab_size": facts.rows("token_embd.weight"),
        "torch_dtype": torch_dtype,
        **_token_ids(header),
    }
    config |= architecture.more_config(facts, config)
    if "pooling" not in config and (pooling := facts.get("pooling_type", 0)):
        config["pooling"] = _pooling_of(pooling)
    _check_all_known(facts.unread(), architecture)
    return {"architectures": [architecture.model_types[config["model_type"]]], **config}


def drafting_layers(header: GgufHeader, architecture: GgufArchitecture) -> int:
    """Return the number of blocks, after those of the model, that only draft tokens."""
    count = header.metadata.get(f"{architecture.name}.{_DRAFTING}", 0)
    whole = header.metadata.get(f"{architecture.name}.block_count", 0)
    if type(count) is not int or not 0 <= count < max(whole, 1):
        raise CheckpointError(f"its {_DRAFTING} is {count!r} of {whole!r} blocks")
    return count


def _pooling_of(kind: Any) -> str:
    if kind not in _POOLINGS:
        raise CheckpointError(
            f"pooling_type {kind!r} is not supported; supported are 1 (mean of the tokens), "
            "2 (first token) and 3 (last token)"
        )
    return _POOLINGS[kind]


def _check_all_known(unread: Mapping[str, Any], architecture: GgufArchitecture) -> None:
    """Raise CheckpointError for metadata that might change what the model computes."""
    for suffix, value in unread.items():
        if suffix not in architecture.ignored and not _is_harmless(suffix, value):
            raise CheckpointError(
                f"its metadata has {architecture.name}.{suffix[:80]} = {str(value)[:80]}, which is "
                "not supported, so the answers could be wrong: use the model's Hugging Face "
                "folder, or, if you know that it changes nothing, a file without this key"
            )


def _is_harmless(suffix: str, value: Any) -> bool:
    """A number 0 is how converters say that a feature is off."""
    if type(value) in (int, float) and value == 0:
        return True
    values = _HARMLESS.get(suffix)
    one = not isinstance(value, list | np.ndarray)
    return values is not None and (not values or (one and value in values))


def _token_ids(header: GgufHeader) -> dict[str, Any]:
    bos = header.metadata.get("tokenizer.ggml.bos_token_id")
    return {"bos_token_id": bos, "eos_token_id": header.metadata.get("tokenizer.ggml.eos_token_id")}


def with_defaults(config: Config) -> dict[str, Any]:
    """Fill in keys that older config.json files omit."""
    heads = config.get("num_key_value_heads") or config.get("num_attention_heads")
    return {**config, "num_key_value_heads": heads}


def metadata_of(config: Config, architecture: GgufArchitecture) -> dict[str, Any]:
    """Return the metadata for a config.json, its keys without the architecture prefix."""
    assert architecture.more_metadata, "architecture_for gives one that can be written"
    _check_fixed(config, architecture)
    metadata = {key.suffix: _given(config, key) for key in architecture.keys}
    try:
        metadata |= {"vocab_size": config["vocab_size"]} | architecture.more_metadata(config)
    except KeyError as missing:
        raise CheckpointError(f"its config.json has no {missing}") from missing
    return {suffix: value for suffix, value in metadata.items() if value is not None}


def _given(config: Config, key: Key) -> Any:
    value = config.get(key.name)
    if value is None:
        if key.default is REQUIRED:
            raise CheckpointError(f"its config.json has no {key.name}")
        return key.default
    return key.kind(value)


def _check_fixed(config: Config, architecture: GgufArchitecture) -> None:
    for key, value in architecture.fixed.items():
        if config.get(key, value) not in (value, None):
            raise CheckpointError(
                f"a {config['model_type']} model with {key} = {config[key]!r} cannot be written as "
                f"GGUF, which assumes {value!r}"
            )
