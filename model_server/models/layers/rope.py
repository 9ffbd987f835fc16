"""Rotary positions: the frequency of each pair in a head, and rotating by it.

Source: Su et al. 2021 (https://arxiv.org/abs/2104.09864); variants for contexts longer than a model
was first trained for are cited where they are computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.kernels.row_sums import rounded
from model_server.models.long_positions import LONG
from sax.errors import CheckpointError


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotations of one step, computed once and used by every layer."""

    cos: jax.Array  # f32[T, 1, R/2]; R <= Q dimensions of a head are rotated
    sin: jax.Array  # f32[T, 1, R/2]
    interleaved: bool = field(metadata={"static": True})  # pairs (0, 1), (2, 3), not (0, R/2)
    query_scale: jax.Array | None = None  # f32[T, 1, 1]: of rotated queries; None: 1

    def __call__(self, x: jax.Array) -> jax.Array:
        """Rotate the first R dimensions of each head of f32[T, heads, Q]."""
        rotated = 2 * self.cos.shape[-1]
        if rotated == x.shape[-1]:
            return self._turn(x)
        return jnp.concatenate([self._turn(x[..., :rotated]), x[..., rotated:]], axis=-1)

    def _turn(self, x: jax.Array) -> jax.Array:
        if not self.interleaved:
            return jnp.concatenate(self._pairs(*jnp.split(x, 2, axis=-1)), axis=-1)
        turned = jnp.stack(self._pairs(x[..., ::2], x[..., 1::2]), axis=-1)
        return turned.reshape(x.shape)

    def _pairs(self, left: jax.Array, right: jax.Array) -> tuple[jax.Array, jax.Array]:
        return (
            rounded(left * self.cos) - rounded(right * self.sin),
            rounded(right * self.cos) + rounded(left * self.sin),
        )


@dataclass(frozen=True, slots=True)
class QueryGrowth:
    """Sharpens the attention of late queries (Nakanishi 2025, https://arxiv.org/abs/2501.19399)."""

    beta: float
    context: int  # tokens that leave queries as they are
    ahead: int = 0  # the number of the first token

    def at(self, positions: jax.Array) -> jax.Array:
        """Maps i32[T] to f32[T, 1, 1]."""
        contexts = ((positions + self.ahead) // self.context).astype(jnp.float32)
        return (1 + rounded(self.beta * jnp.log1p(contexts)))[:, None, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary positions of a layer; hashable, so layers can share rotations."""

    frequencies: tuple[float, ...]  # of each pair, radians per token
    scale: float = 1.0  # of the rotated dimensions
    interleaved: bool = False
    long_frequencies: tuple[float, ...] | None = None  # of long sequences; None: the same
    short_context: int | None = None  # tokens of the longest sequence that is not long
    query_growth: QueryGrowth | None = None
    # Of each pair, the number that turns it where positions are triples: 0 frame, 1 row, 2 column.
    axes: tuple[int, ...] | None = None

    def at(self, positions: jax.Array) -> Rotary:
        """Return the rotations for positions i32[T], marked by LONG if there are two lists.

        Positions may be triples i32[3, T] for a rope with `axes`.
        """
        if positions.ndim == 2:
            return self._at_triples(positions)
        # In float32, as in training: more exact angles (`rotary_angles`) flip bfloat16 ties.
        frequencies = jnp.asarray(self.frequencies, jnp.float32)[None, :]
        if self.long_frequencies is not None:
            long = jnp.asarray(self.long_frequencies, jnp.float32)
            frequencies = jnp.where((positions >= LONG)[:, None], long[None, :], frequencies)
            positions = positions % LONG
        return self.turned(positions.astype(jnp.float32)[:, None] * frequencies, positions)

    def _at_triples(self, positions: jax.Array) -> Rotary:
        assert self.axes is not None, "a model whose positions are triples has ropes with axes"
        assert self.long_frequencies is None, "long sequences are told by single positions"
        assert self.query_growth is None, "queries grow by single positions"
        each = positions.astype(jnp.float32)[np.asarray(self.axes)].T  # f32[T, R/2]
        return self.turned(each * jnp.asarray(self.frequencies, jnp.float32)[None, :], positions)

    def turned(self, angles: jax.Array, positions: jax.Array) -> Rotary:
        """Return the rotations by angles f32[T, R/2], of queries at positions i32[T]."""
        angles = angles[:, None, :]  # f32[T, 1, R/2]
        cos, sin = jnp.cos(angles) * self.scale, jnp.sin(angles) * self.scale
        # Without the barrier XLA fuses the sines into every use and recomputes them for every head.
        cos, sin = jax.lax.optimization_barrier((cos, sin))
        growth = self.query_growth
        return Rotary(cos, sin, self.interleaved, growth and growth.at(positions))


def axes_in_a_row(sections: Sequence[int]) -> tuple[int, ...]:
    """Axes of pairs in three runs, as Qwen2-VL has them (Wang et al. 2024, arXiv:2409.12191)."""
    return tuple(axis for axis, pairs in enumerate(sections) for _ in range(pairs))


def axes_in_turn(sections: Sequence[int]) -> tuple[int, ...]:
    """Axes of pairs that take turns, as Qwen3-VL has them: row and column at every third pair.

    The first section has the pairs that are left.
    """
    axes = [0] * sum(sections)
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = [axis] * len(axes[axis : 3 * sections[axis] : 3])
    return tuple(axes)


def rope_frequencies(rotated: int, theta: float) -> np.ndarray:
    """f32[R/2]: radians per position for each pair."""
    half = rotated // 2
    return (theta ** (-np.arange(half, dtype=np.float64) / half)).astype(np.float32)


def rope_of(
    config: Mapping[str, Any],
    rotated: int,
    *,
    theta: float | None = None,
    interleaved: bool = False,
    context: int | None = None,
) -> Rope:
    """Build the rope a config.json specifies. Raises CheckpointError for unsupported kinds.

    theta: base of layers that have their own; those are never stretched.
    context: most tokens served; None: as many as the model was made for.
    """
    if theta is not None:
        return Rope(
            frequencies=tuple(rope_frequencies(rotated, theta).tolist()), interleaved=interleaved
        )
    # transformers 5 moved rope_theta and rope_scaling into rope_parameters.
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise CheckpointError(f"config.json has {given!r} where its rope scaling should be")
    if any(isinstance(value, Mapping) for value in given.values()):
        raise CheckpointError(
            f"config.json has rope_parameters per layer type ({', '.join(given)}), which this "
            "family does not support"
        )
    kind = given.get("rope_type", given.get("type", "default"))
    if not isinstance(kind, str) or kind not in _STRETCHES:
        raise CheckpointError(
            f"rope scaling {kind!r} is not supported; supported: {', '.join(_STRETCHES)}"
        )
    _check_settings(kind, given)
    try:
        base = float(given.get("rope_theta") or config.get("rope_theta") or 10000.0)
        asked = _Asked(rope_frequencies(rotated, base), base, given, config, context)
        frequencies, scale = _STRETCHES[kind](asked)
        long, short_context = _long_list(asked) if kind == "longrope" else (None, None)
    except KeyError as missing:
        raise CheckpointError(f"rope scaling {kind!r} has no {missing}") from missing
    except (TypeError, ValueError, ZeroDivisionError) as exc:
        raise CheckpointError(f"rope scaling {dict(given)} is invalid: {exc}") from exc
    return Rope(
        frequencies=tuple(frequencies.astype(np.float32).tolist()),
        scale=scale,
        interleaved=interleaved,
        long_frequencies=long,
        short_context=short_context,
    )


def _check_settings(kind: str, given: Mapping[str, Any]) -> None:
    """Raise CheckpointError for a setting that might change the positions; a null counts as absent.

    A family that rotates part of a head removes partial_rotary_factor before.
    """
    known = (*_SETTINGS[kind], *_HARMLESS_SETTINGS)
    for key, value in given.items():
        at_rest = key in _AT_REST and value == _AT_REST[key]
        if value is not None and key not in known and not at_rest:
            raise CheckpointError(
                f"config.json has {key} = {value!r} among its rope settings, which is not computed "
                f"for positions of kind {kind!r}, so the answers could be wrong: serve a model of "
                "a supported family, or, if you know that it changes nothing, remove the key"
            )


@dataclass(frozen=True, slots=True)
class _Asked:
    plain: np.ndarray  # f32[R/2]: unstretched frequencies
    base: float
    given: Mapping[str, Any]  # rope_parameters or rope_scaling
    config: Mapping[str, Any]
    context: int | None  # most tokens served


Stretched = tuple[np.ndarray, float]  # frequencies, scale of the rotated dimensions


def _default(asked: _Asked) -> Stretched:
    return asked.plain, 1.0


def _linear(asked: _Asked) -> Stretched:
    """Positions divided by a factor (Chen et al. 2023, https://arxiv.org/abs/2306.15595)."""
    return asked.plain / float(asked.given["factor"]), 1.0


def _proportional(asked: _Asked) -> Stretched:
    """Gemma 4's: the slow pairs of a head do not turn, the others as if all of them did."""
    share = float(asked.given.get("partial_rotary_factor") or 1.0)
    turning = np.arange(len(asked.plain)) < int(share * len(asked.plain))
    return np.where(turning, asked.plain / float(asked.given.get("factor") or 1.0), 0.0), 1.0


def _llama3(asked: _Asked) -> Stretched:
    """Llama 3.1's longer context: slow pairs rotate `factor` times slower, fast ones are unchanged.

    Pairs between `low` and `high` turns per original context are blended; Llama 4 Scout's are one.
    Source: Grattafiori et al. 2024 (https://arxiv.org/abs/2407.21783) and its reference code.
    """
    given, plain = asked.given, asked.plain
    low, high = float(given["low_freq_factor"]), float(given["high_freq_factor"])
    turns = int(given["original_max_position_embeddings"]) * plain / (2 * np.pi)
    width = high - low
    keep = np.clip((turns - low) / width, 0.0, 1.0) if width else (turns >= low).astype(float)
    return plain * (keep + (1 - keep) / float(given["factor"])), 1.0


def _longrope(asked: _Asked) -> Stretched:
    """LongRoPE (Ding et al. 2024, https://arxiv.org/abs/2402.13753): a divisor for every pair.

    There are two lists, for sequences within the original context, as here, and for longer ones.
    """
    given, whole, original = asked.given, _whole(asked), _original(asked)
    factor = float(given.get("factor") or whole / original)
    scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return _divided(asked, "short_factor"), float(given.get("attention_factor") or scale)


def _long_list(asked: _Asked) -> tuple[tuple[float, ...] | None, int | None]:
    """LongRoPE's frequencies for long sequences and the original context.

    None and None if no sequence that is served can be long.
    """
    long, original = _divided(asked, "long_factor"), _original(asked)
    if (asked.context or _whole(asked)) <= original:
        return None, None
    return tuple(long.astype(np.float32).tolist()), original


def _whole(asked: _Asked) -> int:
    return int(asked.config["max_position_embeddings"])


def _original(asked: _Asked) -> int:
    given = asked.config.get("original_max_position_embeddings")
    return int(given or asked.given["original_max_position_embeddings"])


def _divided(asked: _Asked, name: str) -> np.ndarray:
    divisors = np.asarray(asked.given[name], np.float64)
    if divisors.shape != asked.plain.shape:
        raise CheckpointError(
            f"config.json has {divisors.size} numbers in {name} for the {len(asked.plain)} "
            "rotated pairs of a head"
        )
    return asked.plain / divisors


def _yarn(asked: _Asked) -> Stretched:
    """YaRN (Peng et al. 2023, https://arxiv.org/abs/2309.00071), with DeepSeek's two mscales."""
    given, plain = asked.given, asked.plain
    factor = float(given["factor"])
    context = int(
        given.get("original_max_position_embeddings") or asked.config["max_position_embeddings"]
    )
    half = len(plain)

    def pair_with(turns: float) -> float:
        return half * math.log(context / (turns * 2 * math.pi)) / math.log(asked.base)

    low = pair_with(float(given.get("beta_fast") or 32.0))
    high = pair_with(float(given.get("beta_slow") or 1.0))
    if given.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * half - 1)
    slow = np.clip((np.arange(half) - low) / max(high - low, 0.001), 0.0, 1.0)
    return plain * (1 - slow) + plain / factor * slow, _yarn_scale(factor, given)


def _yarn_scale(factor: float, given: Mapping[str, Any]) -> float:
    if given.get("attention_factor") is not None:
        return float(given["attention_factor"])
    one, all_dims = given.get("mscale"), given.get("mscale_all_dim")
    if one and all_dims:
        return yarn_mscale(factor, float(one)) / yarn_mscale(factor, float(all_dims))
    return yarn_mscale(factor, 1.0)


def yarn_mscale(factor: float, mscale: float) -> float:
    """YaRN's attention sharpening for longer contexts, equation 22."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


_STRETCHES = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "longrope": _longrope,
    "proportional": _proportional,
    "yarn": _yarn,
}
_SETTINGS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "proportional": ("factor", "partial_rotary_factor"),
    "longrope": ("factor", "long_factor", "short_factor", "attention_factor"),
    "yarn": (
        "factor",
        "beta_fast",
        "beta_slow",
        "truncate",
        "attention_factor",
        "mscale",
        "mscale_all_dim",
    ),
}
# Read by each kind that needs them; a limit, and a note that the weights were trained so.
_HARMLESS_SETTINGS = (
    "finetuned",
    "max_position_embeddings",
    "original_max_position_embeddings",
    "rope_theta",
    "rope_type",
    "type",
)
_AT_REST = {"partial_rotary_factor": 1.0, "attn_factor": 1.0, "extrapolation_factor": 1.0}
