"""Activations by the names that config.json has, and gates: what a feed-forward lets through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from model_server.kernels.cpu import rows
from model_server.kernels.row_sums import logistic, silu
from sax.errors import CheckpointError

Activation = Callable[[jax.Array], jax.Array]


@dataclass(frozen=True, slots=True)
class ClampedGate:
    """gpt-oss's gate: both halves clamped, the second one more than its number."""

    limit: float
    steepness: float  # of the sigmoid

    def __call__(self, opening: jax.Array) -> jax.Array:
        opening = jnp.minimum(opening, self.limit)
        return opening * logistic(self.steepness * opening)

    def gated(self, opening: jax.Array, up: jax.Array) -> jax.Array:
        return self(opening) * (jnp.clip(up, -self.limit, self.limit) + 1.0)


@dataclass(frozen=True, slots=True)
class BoundedGate:
    """SiLU's gate within bounds: what passes, and what opens it or how far it opens."""

    limit: float
    after: bool = False  # how far it opens is bounded

    def __call__(self, opening: jax.Array) -> jax.Array:
        if self.after:
            return jnp.minimum(silu(opening), self.limit)
        return silu(jnp.minimum(opening, self.limit))

    def gated(self, opening: jax.Array, up: jax.Array) -> jax.Array:
        return self(opening) * jnp.clip(up, -self.limit, self.limit)


OWN_GATES = (ClampedGate, BoundedGate)  # what they let through is not activation(opening) * up


def gated(
    activation: Activation, opening: jax.Array, up: jax.Array, live: jax.Array | None = None
) -> jax.Array:
    """f32[T, F]: activation(opening) * up, or as the gate of a kind of its own combines them.

    live: i32[T], the rows to compute by the native kernels, then -1; None: all, by XLA.
    """
    if isinstance(activation, OWN_GATES):
        return activation.gated(opening, up)
    gate = gate_of(activation)
    if live is None or gate is None:
        return activation(opening) * up
    return rows.gated(jnp.concatenate([opening, up], axis=1), live, gate)


def activated(activation: Activation, x: jax.Array, live: jax.Array | None) -> jax.Array:
    """f32[T, F]: activation(x); live: as of `gated`."""
    gate = gate_of(activation)
    return activation(x) if live is None or gate is None else rows.activated(x, None, live, gate)


def _exact_gelu(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=False)


def _squared_relu(x: jax.Array) -> jax.Array:
    return jnp.square(jax.nn.relu(x))


def _quick_gelu(x: jax.Array) -> jax.Array:
    return x * logistic(1.702 * x)


_ACTIVATIONS: dict[str, Activation] = {
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "gelu": _exact_gelu,
    "gelu_new": jax.nn.gelu,
    "gelu_fast": jax.nn.gelu,
    "gelu_pytorch_tanh": jax.nn.gelu,
    "quick_gelu": _quick_gelu,
    "relu": jax.nn.relu,
    "relu2": _squared_relu,
}


# Of those that the native kernels compute with what they let through.
_GATES: dict[Activation, str] = {
    jax.nn.silu: "silu",
    jax.nn.gelu: "gelu_tanh",
    jax.nn.relu: "relu",
    _exact_gelu: "gelu",
    _quick_gelu: "quick_gelu",
}


def gate_of(activation: Activation) -> str | None:
    """Return its name among the native kernels; None: there is none."""
    return _GATES.get(activation)


def activation_of(name: Any) -> Activation:
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise CheckpointError(
            f"activation {name!r} is not supported; supported: {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]
