"""The pieces that families are made of. Flat tokens in, flat tokens out: no batch, no pages.

Weights lie as [out, in], as in Hugging Face checkpoints: XLA:CPU multiplies that layout fastest
and nothing is transposed at load. Products take the weight's dtype and give f32; the residual
stream stays f32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.models.weight import weight


def project(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """[T, in] times [out, in], transposed, in the kernel's dtype, summed in f32: f32[T, out]."""
    return jax.lax.dot_general(
        x.astype(kernel.dtype), kernel, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )


class Linear(nnx.Module):
    """A projection; with a bias where `bias_names` (perhaps empty) are given."""

    def __init__(
        self,
        outputs: int,
        inputs: int,
        axes: tuple[str | None, str | None],
        names: tuple[str, ...] = (),
        *,
        dtype: Any,
        bias_names: tuple[str, ...] | None = None,
        spread: float = 0.02,
    ) -> None:
        self.kernel = weight((outputs, inputs), axes, names, dtype=dtype, spread=spread)
        if bias_names is not None:
            self.bias = weight((outputs,), axes[:1], bias_names, dtype=jnp.float32, spread=0.0)
        self.biased = bias_names is not None

    def __call__(self, x: jax.Array) -> jax.Array:
        y = project(x, self.kernel[...])
        return y + self.bias[...] if self.biased else y


class RmsNorm(nnx.Module):
    """x / rms(x) * scale (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467)."""

    def __init__(self, size: int, names: tuple[str, ...] = (), *, epsilon: float) -> None:
        self.scale = weight((size,), (None,), names, dtype=jnp.float32)
        self.epsilon = epsilon

    def __call__(self, x: jax.Array) -> jax.Array:
        mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
        return x * jax.lax.rsqrt(mean_square + self.epsilon) * self.scale[...]


class Embedding(nnx.Module):
    """Token vectors; also the output head where the two are tied."""

    def __init__(
        self,
        vocab: int,
        size: int,
        names: tuple[str, ...] = (),
        *,
        dtype: Any,
        spread: float = 0.02,
    ) -> None:
        self.table = weight((vocab, size), ("vocab", "embed"), names, dtype=dtype, spread=spread)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        return self.table[...].at[tokens].get(mode="clip").astype(jnp.float32)

    def logits(self, x: jax.Array) -> jax.Array:
        return project(x, self.table[...])


class Rotary(NamedTuple):
    """The rotations of one step, computed once and used by every layer."""

    cos: jax.Array  # f32[T, 1, Q/2]
    sin: jax.Array  # f32[T, 1, Q/2]

    def __call__(self, x: jax.Array) -> jax.Array:
        """Rotate the two halves of each head of f32[T, heads, Q]."""
        left, right = jnp.split(x, 2, axis=-1)
        return jnp.concatenate(
            [left * self.cos - right * self.sin, right * self.cos + left * self.sin], axis=-1
        )


def rotary(positions: jax.Array, frequencies: np.ndarray) -> Rotary:
    """Rotations by position, i32[T] (Su et al. 2021, https://arxiv.org/abs/2104.09864)."""
    angles = (positions.astype(jnp.float32)[:, None] * frequencies)[:, None, :]
    # Without the barrier XLA fuses the sines into every use and computes them once per head.
    return Rotary(*jax.lax.optimization_barrier((jnp.cos(angles), jnp.sin(angles))))


def rope_frequencies(head_dim: int, theta: float) -> np.ndarray:
    """f32[Q/2]: radians per position of each pair."""
    half = head_dim // 2
    return (theta ** (-np.arange(half, dtype=np.float64) / half)).astype(np.float32)


def stretch_llama3(
    frequencies: np.ndarray, *, factor: float, low: float, high: float, original_context: int
) -> np.ndarray:
    """Llama 3.1's longer context: slow pairs turn `factor` times slower, fast ones stay.

    Pairs between `low` and `high` turns per original context are blended.
    Source: Grattafiori et al. 2024 (https://arxiv.org/abs/2407.21783) and its reference code.
    """
    turns = original_context * frequencies / (2 * np.pi)
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (frequencies * (keep + (1 - keep) / factor)).astype(np.float32)


@jax.jit
def run_layer(layer: Any, *inputs: Any) -> Any:
    """Call a layer. Layers of one shape are traced once: jit finds the others in its cache."""
    return layer(*inputs)
