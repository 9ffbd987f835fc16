"""Running a module over one sequence, whole, without engine or buckets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.kernels import reference
from model_server.kernels.paged import Kernel, PagedBatch
from model_server.kernels.pages import LayerPages, allocate
from model_server.models.long_positions import LONG

PAGE = 8


def empty_pages(
    recipe: Any, pages: int, kernel: Kernel = reference.KERNEL
) -> tuple[LayerPages, ...]:
    return allocate(recipe.cache(1), pages, PAGE, jnp.dtype("float32"), shapes=kernel.shapes)


def one_prompt(count: int, kernel: Kernel = reference.KERNEL) -> PagedBatch:
    """A batch of one idle decode row and one block with a prompt of `count` tokens."""
    pages = -(-count // PAGE)
    table = jnp.arange(1, pages + 1, dtype=jnp.int32)[None]
    at = np.arange(count)
    return PagedBatch(
        pages=jnp.asarray(np.concatenate([[0], 1 + at // PAGE]), jnp.int32),
        offsets=jnp.asarray(np.concatenate([[0], at % PAGE]), jnp.int32),
        decode_tables=jnp.zeros((1, pages), jnp.int32),
        decode_limits=jnp.zeros((1, 1), jnp.int32),
        block_tables=table,
        block_limits=jnp.asarray(at[None] + 1, jnp.int32),
        kernel=kernel,
    ).with_states(PAGE)


def long_mark(recipe: Any, count: int) -> int:
    """Added to the positions of a sequence of `count` tokens, as the engine does."""
    most = recipe.short_context
    return LONG if most is not None and count > most else 0


def logits_of(module: Any, recipe: Any, prompt: np.ndarray | jax.Array) -> jax.Array:
    """f32[S, V]: the logits after each token of a prompt."""
    count = len(prompt)
    tokens = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.asarray(prompt, jnp.int32)])
    at = np.arange(count) + long_mark(recipe, count)
    positions = jnp.asarray(np.concatenate([[0], at]), jnp.int32)
    pages = empty_pages(recipe, -(-count // PAGE))
    hidden, _ = module(tokens, positions, pages, one_prompt(count))
    return module.logits(hidden[1:])


class WholeSequences:
    """A model over whole sequences. One program serves all lengths: no token sees a later one.

    With two lists of rotary factors all lengths take those of the longest sequence.
    """

    def __init__(self, model: Any, recipe: Any, most: int) -> None:
        """most: tokens of the longest sequence."""
        self._model = model
        self._most = most
        self._run = jax.jit(partial(_logits, recipe))

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """f32[S, V]: the logits after each token."""
        return np.asarray(self._run(self._model, _padded(tokens, self._most)))[: len(tokens)]

    def greedy(self, prompt: tuple[int, ...], count: int) -> list[int]:
        """The likeliest tokens after a prompt."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self.logits(tokens)[-1].argmax()))
        return tokens[len(prompt) :]


def _logits(recipe: Any, model: Any, tokens: jax.Array) -> jax.Array:
    return logits_of(model, recipe, tokens)


def _padded(tokens: Sequence[int], most: int) -> jax.Array:
    return jnp.asarray([*tokens, *[0] * (most - len(tokens))], jnp.int32)
