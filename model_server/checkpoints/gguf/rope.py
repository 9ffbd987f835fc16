"""Converts rope_theta and rope_scaling of a config.json to and from their GGUF form.

GGUF stores Llama 3's scaling only as a tensor of frequency factors, and Phi-3's as two such
tensors; everything else is metadata. Pure; raises CheckpointError without a file name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from model_server.checkpoints.gguf.facts import Facts
from model_server.checkpoints.gguf.heads import (
    head_dim,
    heads_metadata,
    read_heads,
    read_partly_rotated_heads,
)
from sax.errors import CheckpointError

LLAMA3_FACTORS = "rope_freqs.weight"  # the divisor of each frequency
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
FACTORS = (LLAMA3_FACTORS, LONG_FACTORS, SHORT_FACTORS)

# Published parameters of Llama 3, of which only the factor differs between models, and of Step 3.5.
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_STEP = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 32.0,
    "original_max_position_embeddings": 131072,
}
_CONTEXT = "rope.scaling.original_context_length"
# config.json -> metadata, for YaRN's optional parameters
_YARN = {"beta_fast": "rope.scaling.yarn_beta_fast", "beta_slow": "rope.scaling.yarn_beta_slow"}
# DeepSeek's two parameters, always equal; llama.cpp expects a tenth (its issue 17945 says why)
_MSCALES, _LOG_MULTIPLIER = ("mscale", "mscale_all_dim"), "rope.scaling.yarn_log_multiplier"
_LONGROPE = ("longrope", "su")


def read_rotary_heads(facts: Facts, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the heads, rope_theta and rope_scaling of a decoder whose whole heads rotate."""
    heads = read_heads(facts, config)
    return heads | read_rope(facts, heads["head_dim"])


def rotary_heads_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    return heads_metadata(config) | rope_metadata(config)


def read_partly_rotated(facts: Facts, config: Mapping[str, Any]) -> dict[str, Any]:
    """Like `read_rotary_heads`, for a decoder of which part of each head rotates."""
    heads = read_partly_rotated_heads(facts, config)
    rotated = heads.pop("rotated")
    part = {"partial_rotary_factor": _share(rotated, heads["head_dim"])}
    return heads | part | read_rope(facts, rotated)


def partly_rotated_metadata(config: Mapping[str, Any], usual: float) -> dict[str, Any]:
    """Invert `read_partly_rotated`; usual: the part that rotates if config.json does not say."""
    given = (config.get("rope_parameters") or {}).get("partial_rotary_factor")
    given = given or config.get("partial_rotary_factor") or usual
    return heads_metadata(config, int(head_dim(config) * given)) | rope_metadata(config)


def read_rope(facts: Facts, rotated: int) -> dict[str, Any]:
    theta = facts.number("rope.freq_base", 10000.0)
    return {"rope_theta": theta, "rope_scaling": _read_scaling(facts, theta, rotated)}


def rope_of_kind(given: Mapping[str, Any], rotated: int, size: int) -> dict[str, Any]:
    """Return the rope of a kind of layers, in which so many of a head's dimensions rotate.

    given: what `read_rope` returns.
    """
    scaling, share = given["rope_scaling"] or {"rope_type": "default"}, _share(rotated, size)
    return {**scaling, "rope_theta": given["rope_theta"], "partial_rotary_factor": share}


def _share(rotated: int, size: int) -> float:
    """Return the part of a size that, times the size and rounded down, is `rotated` again."""
    share = rotated / size
    return share if int(size * share) == rotated else math.nextafter(share, math.inf)


def read_local_rope(facts: Facts, theta: float, size: int, rotated: int) -> dict[str, Any]:
    """Return the rope of layers with a window, which is not stretched.

    theta, rotated: of heads of this size, if the file has none of these layers' own.
    """
    rotated = facts.whole("rope.dimension_count_swa", rotated)
    theta = facts.number("rope.freq_base_swa", theta)
    return rope_of_kind({"rope_theta": theta, "rope_scaling": None}, rotated, size)


def _read_scaling(facts: Facts, theta: float, rotated: int) -> dict[str, Any] | None:
    if LLAMA3_FACTORS in facts.factors:
        return _read_factors(facts, theta, rotated)
    kind = facts.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise CheckpointError(f"its rope.scaling.type is {kind!r}; supported: none, linear, yarn")
    scaling = {"rope_type": kind, "factor": facts.number("rope.scaling.factor")}
    return scaling if kind == "linear" else scaling | _read_yarn(facts)


def _read_yarn(facts: Facts) -> dict[str, Any]:
    given: dict[str, Any] = {"original_max_position_embeddings": facts.whole(_CONTEXT)}
    given |= {key: facts.number(at) for key, at in _YARN.items() if facts.get(at) is not None}
    if facts.get(_LOG_MULTIPLIER):
        given |= dict.fromkeys(_MSCALES, round(10 * facts.number(_LOG_MULTIPLIER), 6))
    return given


def _read_factors(facts: Facts, theta: float, rotated: int) -> dict[str, Any]:
    """Recover published parameters that reproduce the factors, or give the factors."""
    # Heads that rotate in part have factors of 1 for the rest.
    factors, rest = np.split(facts.factors[LLAMA3_FACTORS], [rotated // 2])
    # Check the shape first: the header may claim heads of any size.
    if factors.shape != (rotated // 2,) or not (np.isfinite(factors) & (factors > 0)).all():
        raise CheckpointError(f"its {LLAMA3_FACTORS} are not {rotated // 2} numbers above 0")
    if (rest != 1).any():
        raise CheckpointError(
            f"its {LLAMA3_FACTORS} stretch more than the {rotated} dimensions that rotate, as "
            "older converters had it: convert the model's Hugging Face folder again"
        )
    factor = round(float(factors.max()), 4)
    for published in (_LLAMA3, _STEP):
        scaling = {"rope_type": "llama3", "factor": factor, **published}
        if facts.get(_CONTEXT) is not None:
            scaling["original_max_position_embeddings"] = facts.whole(_CONTEXT)
        if np.allclose(factors, llama3_factors(theta, rotated, scaling), rtol=1e-3):
            return scaling
    given = _numbers(factors, rotated)
    return {
        "rope_type": "longrope",
        "long_factor": given,
        "short_factor": given,
        "attention_factor": 1.0,
        "original_max_position_embeddings": facts.whole("context_length"),
    }


def llama3_factors(theta: float, rotated: int, scaling: Mapping[str, Any]) -> np.ndarray:
    """Return f32[rotated / 2], the divisors of the rotation frequencies in Llama 3."""
    wavelengths = 2 * np.pi * theta ** (np.arange(0, rotated, 2) / rotated)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] / wavelengths
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1.0 - kept) / scaling["factor"] + kept)).astype(np.float32)


def read_longrope(facts: Facts, rotated: int, positions: int) -> dict[str, Any]:
    """Read Phi-3's LongRoPE: two lists of factors, one for long contexts and one for short."""
    theta = facts.number("rope.freq_base", 10000.0)
    original = facts.whole(_CONTEXT, positions)
    rope = {"rope_theta": theta, "original_max_position_embeddings": original}
    lists = [facts.factors.get(name) for name in (LONG_FACTORS, SHORT_FACTORS)]
    if all(factors is None for factors in lists):
        return rope | {"rope_scaling": _read_scaling(facts, theta, rotated)}
    long, short = (_numbers(factors, rotated) for factors in lists)
    scaling: dict[str, Any] = {"type": "longrope", "long_factor": long, "short_factor": short}
    usual = longrope_attention_factor(positions, original)
    if not math.isclose(facts.number("rope.scaling.attn_factor", usual), usual, rel_tol=1e-4):
        scaling["attention_factor"] = facts.number("rope.scaling.attn_factor")
    return rope | {"rope_scaling": scaling}


def _numbers(factors: np.ndarray | None, rotated: int) -> list[float]:
    if factors is None or factors.shape != (rotated // 2,):
        raise CheckpointError(
            f"it needs {LONG_FACTORS} and {SHORT_FACTORS} with {rotated // 2} numbers each"
        )
    return [float(str(factor)) for factor in factors]  # 1.1, not 1.100000023841858


def longrope_attention_factor(positions: int, original: int) -> float:
    """Attention scale for longer contexts (Ding et al. 2024, https://arxiv.org/abs/2402.13753)."""
    if positions <= original:
        return 1.0
    return math.sqrt(1 + math.log(positions / original) / math.log(original))


# --- from config.json -------------------------------------------------------------------------


def rope_of(config: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
    """Return rope_theta and the scaling ({} if none), from old keys or those of transformers 5."""
    given = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = given.get("rope_theta") or config.get("rope_theta") or 10000.0
    given.pop("rope_theta", None)
    return float(theta), {} if rope_type(given) == "default" else given


def rope_type(scaling: Mapping[str, Any]) -> str:
    return scaling.get("rope_type") or scaling.get("type") or "default"


def rope_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    """Raises CheckpointError for a scaling that GGUF cannot express."""
    theta, scaling = rope_of(config)
    return {"rope.freq_base": theta} | _scaling_metadata(scaling, config)


def _scaling_metadata(scaling: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    kind = rope_type(scaling)
    original = scaling.get("original_max_position_embeddings")
    original = original or config["max_position_embeddings"]
    if kind == "default":
        return {}
    if kind == "llama3":  # the rest is stored as a tensor, see rope_factors
        _only(scaling, {"factor": None, **_LLAMA3, "original_max_position_embeddings": None})
        return {_CONTEXT: int(original)}
    if kind not in ("linear", "yarn"):
        raise CheckpointError(f"rope_scaling of type {kind!r} cannot be written as GGUF")
    written = {"rope.scaling.type": kind, "rope.scaling.factor": float(scaling["factor"])}
    if kind == "linear":
        _only(scaling, {"factor": None, "original_max_position_embeddings": None})
        return written
    return written | _yarn_metadata(scaling, int(original))


def _yarn_metadata(scaling: dict[str, Any], original: int) -> dict[str, Any]:
    known = dict.fromkeys(["factor", "original_max_position_embeddings", *_YARN, *_MSCALES])
    _only(scaling, known)
    written: dict[str, Any] = {_CONTEXT: original}
    written |= {at: float(scaling[key]) for key, at in _YARN.items() if scaling.get(key)}
    mscale, mscale_all = (scaling.get(key) for key in _MSCALES)
    if mscale != mscale_all:
        raise CheckpointError("rope_scaling with unequal mscales cannot be written as GGUF")
    return written | ({_LOG_MULTIPLIER: 0.1 * mscale} if mscale else {})


def rope_factors(config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return Llama 3's frequency factors as a tensor by name; {} for any other scaling."""
    theta, scaling = rope_of(config)
    if rope_type(scaling) != "llama3":
        return {}
    return {LLAMA3_FACTORS: llama3_factors(theta, head_dim(config), scaling)}


def longrope_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    """Invert `read_longrope`, except for the two lists (see `longrope_factors`)."""
    theta, scaling = rope_of(config)
    positions = config["max_position_embeddings"]
    original = config.get("original_max_position_embeddings")
    original = int(original or scaling.get("original_max_position_embeddings") or positions)
    written = {"rope.freq_base": theta, _CONTEXT: original}
    if rope_type(scaling) not in _LONGROPE:
        return written | _scaling_metadata(scaling, config)
    lists = dict.fromkeys(["long_factor", "short_factor", "attention_factor", "factor"])
    _only(scaling, lists | {"original_max_position_embeddings": None})
    usual = longrope_attention_factor(positions, original)
    factor = scaling.get("attention_factor") or usual
    return written | {"rope.scaling.attn_factor": float(factor)}


def longrope_factors(config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return Phi-3's two lists of factors as tensors by name."""
    _, scaling = rope_of(config)
    if rope_type(scaling) not in _LONGROPE:
        return {}
    return {
        LONG_FACTORS: np.asarray(scaling["long_factor"], np.float32),
        SHORT_FACTORS: np.asarray(scaling["short_factor"], np.float32),
    }


def _only(scaling: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Raise CheckpointError for unknown keys, and for values that differ from GGUF's fixed ones."""
    for key, value in scaling.items():
        if key in ("type", "rope_type", "partial_rotary_factor") or value is None:
            continue
        if key not in known or known[key] not in (None, value):
            raise CheckpointError(f"rope_scaling with {key} = {value} cannot be written as GGUF")
