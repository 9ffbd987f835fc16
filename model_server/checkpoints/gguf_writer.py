"""Writes a checkpoint as a GGUF file that llama.cpp reads, tensor by tensor.

The inverse of `gguf`, `gguf_config` and `gguf_tokenizer`, for the same architectures. Stores
float32, float16 or bfloat16; quantising is left to llama.cpp's own tools.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType, TokenType
from gguf.gguf_writer import GGUFWriter

from model_server.checkpoints.cast import DTYPES, cast
from model_server.checkpoints.checkpoint import Checkpoint, ordered_ends
from model_server.checkpoints.gguf import pairs_of_heads
from model_server.checkpoints.gguf_architecture import ARCHITECTURES, Architecture
from model_server.checkpoints.gguf_config import ROPE_FACTORS, llama3_factors
from model_server.checkpoints.gguf_tokenizer import PRE_TOKENIZERS
from sax.errors import CheckpointError
from sax.types import Progress

_KINDS = {
    "float32": GGMLQuantizationType.F32,
    "float16": GGMLQuantizationType.F16,
    "bfloat16": GGMLQuantizationType.BF16,
}
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def write_gguf(
    source: Checkpoint,
    path: Path,
    dtypes: Mapping[str, str],
    report: Callable[[Progress], None],
) -> None:
    """`dtypes` says what each tensor is to be stored as. Raises CheckpointError."""
    architecture = _architecture(source)
    writer = GGUFWriter(path, architecture.name)
    try:
        _add_config(writer, source.config, architecture)
        _add_tokenizer(writer, source)
        factors = _rope_factors(source.config)
        _announce(writer, source, architecture, dtypes, factors)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        _write_tensors(writer, source, architecture, dtypes, factors, report)
    finally:
        writer.close()


def _architecture(source: Checkpoint) -> Architecture:
    wanted = source.config.get("model_type")
    for architecture in ARCHITECTURES.values():
        if architecture.model_type == wanted:
            return architecture
    known = ", ".join(sorted(a.model_type for a in ARCHITECTURES.values()))
    raise CheckpointError(f"a {wanted!r} model cannot be written as GGUF; supported: {known}")


def _add_config(writer: GGUFWriter, config: dict[str, Any], architecture: Architecture) -> None:
    prefix = architecture.name
    for key, suffix in architecture.config.items():
        _add_number(writer, f"{prefix}.{suffix}", config[key])
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_uint32(f"{prefix}.vocab_size", config["vocab_size"])
    writer.add_uint32(
        f"{prefix}.attention.head_count_kv", config.get("num_key_value_heads") or heads
    )
    for suffix in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        writer.add_uint32(f"{prefix}.{suffix}", head_dim)
    writer.add_float32(f"{prefix}.rope.freq_base", config.get("rope_theta") or 10000.0)
    _add_rope_scaling(writer, prefix, config.get("rope_scaling"))


def _add_number(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


def _add_rope_scaling(writer: GGUFWriter, prefix: str, scaling: dict[str, Any] | None) -> None:
    kind = _rope_type(scaling)
    if scaling is None or kind in ("default", "llama3"):  # llama3 goes in as a tensor
        return
    if kind not in ("linear", "yarn"):
        raise CheckpointError(f"rope_scaling of the kind {kind!r} cannot be written as GGUF")
    writer.add_string(f"{prefix}.rope.scaling.type", kind)
    writer.add_float32(f"{prefix}.rope.scaling.factor", scaling["factor"])
    if length := scaling.get("original_max_position_embeddings"):
        writer.add_uint32(f"{prefix}.rope.scaling.original_context_length", length)


def _rope_type(scaling: dict[str, Any] | None) -> str:
    scaling = scaling or {}
    return scaling.get("rope_type") or scaling.get("type") or "default"


def _rope_factors(config: dict[str, Any]) -> np.ndarray | None:
    if _rope_type(config.get("rope_scaling")) != "llama3":
        return None
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return llama3_factors(config["rope_theta"], head_dim, config["rope_scaling"])


def _add_tokenizer(writer: GGUFWriter, source: Checkpoint) -> None:
    tokenizer, template = source.tokenizer(), source.chat_template()
    serialized = json.loads(tokenizer.serialized)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_pre_tokenizer_name(serialized))
    tokens, types = _vocabulary(serialized, source.config["vocab_size"])
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([_merge(merge) for merge in serialized["model"]["merges"]])
    writer.add_add_bos_token(tokenizer.adds_bos)
    _add_ends(writer, tokenizer.bos_id, ordered_ends(source))
    if template is not None:
        writer.add_chat_template(template.source)


def _pre_tokenizer_name(serialized: dict[str, Any]) -> str:
    if serialized["model"]["type"] != "BPE" or serialized.get("normalizer"):
        raise CheckpointError("only byte-level BPE tokenizers can be written as GGUF")
    given = serialized.get("pre_tokenizer") or {}
    steps = given.get("pretokenizers", [given])
    for name, known in PRE_TOKENIZERS.items():
        if steps == known:
            return name
    raise CheckpointError(
        "its tokenizer cuts text in a way that GGUF has no name for here; "
        f"known are {', '.join(PRE_TOKENIZERS)}"
    )


def _vocabulary(serialized: dict[str, Any], size: int) -> tuple[list[str], list[int]]:
    """Texts and kinds by id; ids that mean nothing get a made-up text."""
    tokens = [f"[PAD{token_id}]" for token_id in range(size)]
    types: list[int] = [TokenType.UNUSED] * size
    for token, token_id in serialized["model"]["vocab"].items():
        tokens[token_id], types[token_id] = token, TokenType.NORMAL
    for added in serialized["added_tokens"]:
        kind = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
        tokens[added["id"]], types[added["id"]] = added["content"], kind
    return tokens, types


def _merge(merge: str | list[str]) -> str:
    return merge if isinstance(merge, str) else " ".join(merge)


def _add_ends(writer: GGUFWriter, bos_id: int | None, ends: list[int]) -> None:
    if bos_id is not None:
        writer.add_bos_token_id(bos_id)
    if len(ends) > len(_EOS_KEYS):
        raise CheckpointError(f"it has {len(ends)} end tokens; GGUF holds {len(_EOS_KEYS)}")
    for key, token_id in zip(_EOS_KEYS, ends, strict=False):
        writer.add_uint32(f"tokenizer.ggml.{key}", token_id)


def _announce(
    writer: GGUFWriter,
    source: Checkpoint,
    architecture: Architecture,
    dtypes: Mapping[str, str],
    factors: np.ndarray | None,
) -> None:
    if factors is not None:
        writer.add_tensor_info(ROPE_FACTORS, factors.shape, factors.dtype, factors.nbytes)
    for name, dtype in dtypes.items():
        gguf_name, shape = architecture.gguf_name(name), source.shape(name)
        if gguf_name is None:
            raise CheckpointError(f"GGUF has no name for {architecture.name}'s tensor {name}")
        stored = _stored_dtype(shape, dtype)
        nbytes = math.prod(shape) * DTYPES[stored].itemsize
        writer.add_tensor_info(gguf_name, shape, DTYPES[stored], nbytes, _KINDS[stored])


def _stored_dtype(shape: tuple[int, ...], dtype: str) -> str:
    """llama.cpp wants norms and biases in float32."""
    return "float32" if len(shape) == 1 else dtype


def _write_tensors(
    writer: GGUFWriter,
    source: Checkpoint,
    architecture: Architecture,
    dtypes: Mapping[str, str],
    factors: np.ndarray | None,
    report: Callable[[Progress], None],
) -> None:
    if factors is not None:
        writer.write_tensor_data(factors)
    for done, (name, dtype) in enumerate(dtypes.items()):
        report(Progress("writing", done, len(dtypes), "tensors"))
        values = source.read(name)
        if heads_key := architecture.heads_key(name):
            values = pairs_of_heads(values, source.config[heads_key])
        writer.write_tensor_data(cast(name, values, _stored_dtype(values.shape, dtype)))
    report(Progress("writing", len(dtypes), len(dtypes), "tensors"))
