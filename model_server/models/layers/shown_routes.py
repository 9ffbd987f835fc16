"""The experts that a call's tokens were sent to, for those who ask which they were.

Layers hand on streams and pages alone. While routes are shown, `Experts` notes the ids that it was
given, and `run_layer` brings them out of the layer's own trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax
import jax.numpy as jnp

_NOTED: ContextVar[list[jax.Array] | None] = ContextVar("routes", default=None)


@contextmanager
def shown_routes() -> Iterator[list[jax.Array]]:
    """Collect what is noted inside: of each layer with experts u8[T, k], u16 of more than 256."""
    noted: list[jax.Array] = []
    token = _NOTED.set(noted)
    try:
        yield noted
    finally:
        _NOTED.reset(token)


def are_shown() -> bool:
    return _NOTED.get() is not None


def note_routes(experts: jax.Array, count: int) -> None:
    """Note i32[T, k], the ids of each token's experts out of `count`, if routes are shown."""
    if (noted := _NOTED.get()) is not None:
        noted.append(experts.astype(jnp.uint8 if count <= 256 else jnp.uint16))


def note_all(noted: list[jax.Array]) -> None:
    """Note what a layer's own trace has given."""
    known = _NOTED.get()
    assert known is not None, "routes are not shown"
    known += noted
