"""GGUF metadata as the keys of a Hugging Face config.json.

Pure: takes a header, gives a dict. Raises CheckpointError without a file name, which the caller
adds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_server.checkpoints.gguf_architecture import ARCHITECTURES, Architecture
from model_server.checkpoints.gguf_header import GgufHeader
from sax.errors import CheckpointError

ROPE_FACTORS = "rope_freqs.weight"  # how much each frequency of Llama 3 is stretched
# Llama 3's published way of stretching; only the factor differs between its models.
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def architecture_of(header: GgufHeader) -> Architecture:
    """Raises CheckpointError for an architecture without a declaration."""
    name = header.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise CheckpointError(f"its architecture is {name!r}; supported from GGUF: {known}")
    return ARCHITECTURES[name]


def config_of(
    header: GgufHeader,
    architecture: Architecture,
    torch_dtype: str,
    rope_factors: np.ndarray | None,
) -> dict[str, Any]:
    """The config.json that the model's makers would have written."""
    facts = _Facts(header, architecture.name)
    if facts.optional("expert_count", 0):
        raise CheckpointError(f"it is a mixture of experts, which {architecture.name} has not here")
    config: dict[str, Any] = {
        "architectures": [architecture.hf_class],
        "model_type": architecture.model_type,
        **architecture.fixed,
    }
    for key, suffix in architecture.config.items():
        config[key] = facts.positive(suffix)
    heads = config["num_attention_heads"]
    config["num_key_value_heads"] = facts.positive("attention.head_count_kv", heads)
    config["head_dim"] = _head_dim(facts, config)
    config["rope_theta"] = float(facts.positive("rope.freq_base", 10000.0))
    config["rope_scaling"] = _rope_scaling(facts, config, rope_factors)
    config["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
    config["mlp_bias"] = "blk.0.ffn_up.bias" in header.tensors
    config["tie_word_embeddings"] = "output.weight" not in header.tensors
    config["vocab_size"] = _vocab_size(header)
    config["torch_dtype"] = torch_dtype
    return config | _token_ids(header)


class _Facts:
    """Typed access to one architecture's metadata."""

    def __init__(self, header: GgufHeader, prefix: str) -> None:
        self._metadata = header.metadata
        self._prefix = prefix

    def positive(self, suffix: str, default: float | None = None) -> Any:
        """A number above zero."""
        key = f"{self._prefix}.{suffix}"
        value = self._metadata.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise CheckpointError(f"its metadata {key} must be a number above 0; it is {value!r}")
        return value

    def optional(self, suffix: str, default: Any) -> Any:
        return self._metadata.get(f"{self._prefix}.{suffix}", default)


def _head_dim(facts: _Facts, config: dict[str, Any]) -> int:
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    if heads % kv_heads:
        raise CheckpointError(f"its {heads} query heads do not share {kv_heads} key heads evenly")
    size = facts.positive("attention.key_length", config["hidden_size"] // heads)
    rotated = facts.positive("rope.dimension_count", size)
    if rotated != size:
        raise CheckpointError(f"it rotates {rotated} of {size} head dimensions; all are supported")
    if size % 2:
        raise CheckpointError(f"its heads have {size} dimensions, which cannot rotate in pairs")
    return size


def _rope_scaling(
    facts: _Facts, config: dict[str, Any], factors: np.ndarray | None
) -> dict[str, Any] | None:
    if factors is not None:
        return _llama3_scaling(config, factors)
    kind = facts.optional("rope.scaling.type", "none")
    if kind == "none":
        return None
    scaling: dict[str, Any] = {"rope_type": kind, "factor": facts.positive("rope.scaling.factor")}
    if kind == "yarn":
        length = facts.positive("rope.scaling.original_context_length")
        scaling["original_max_position_embeddings"] = length
    elif kind != "linear":
        raise CheckpointError(f"its rope.scaling.type is {kind!r}; known are none, linear, yarn")
    return scaling


def _llama3_scaling(config: dict[str, Any], factors: np.ndarray) -> dict[str, Any]:
    """GGUF keeps only the factors: find parameters and check that they explain them."""
    scaling = {"rope_type": "llama3", "factor": round(float(factors.max()), 4), **_LLAMA3}
    expected = llama3_factors(config["rope_theta"], config["head_dim"], scaling)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise CheckpointError(f"its {ROPE_FACTORS} are not those of Llama 3, the only ones known")
    return scaling


def llama3_factors(theta: float, head_dim: int, scaling: dict[str, Any]) -> np.ndarray:
    """f32[head_dim / 2]: what Llama 3 divides each rotation frequency by."""
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] / wavelengths
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1.0 - kept) / scaling["factor"] + kept)).astype(np.float32)


def _vocab_size(header: GgufHeader) -> int:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError("it has no token_embd.weight, or one that is not a matrix")
    return embedding.shape[0]


def _token_ids(header: GgufHeader) -> dict[str, Any]:
    bos = header.metadata.get("tokenizer.ggml.bos_token_id")
    return {"bos_token_id": bos, "eos_token_id": header.metadata.get("tokenizer.ggml.eos_token_id")}
