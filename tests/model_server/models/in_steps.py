"""Running a module over one sequence as the engine does: chunks of the prompt, then token by token.

Every step sees what the ones before it left in the pages, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.kernels.paged import Kernel, PagedBatch
from tests.model_server.tiny import PAGE, empty_pages, long_mark


class InSteps:
    """A module in steps of a decode row and a block, of which one is idle.

    A block is as long as the longest prompt, so that one program runs the whole prompt, its chunks
    and its single tokens.
    """

    def __init__(self, module: Any, recipe: Any, most: int, kernel: Kernel) -> None:
        """most: tokens of the longest prompt."""
        self._module, self._recipe, self._most, self._kernel = module, recipe, most, kernel
        self._step = jax.jit(_step)

    def logits(
        self, prompt: np.ndarray, chunks: Sequence[int], *, alone: bool = False
    ) -> np.ndarray:
        """f32[S, V]: chunks of these sizes are prefilled, each token after them is a decode step.

        alone: blocks are as long as their chunks, and decode steps have none; each has a program.
        """
        counts = [*chunks, *[1] * (len(prompt) - sum(chunks))]
        pages = empty_pages(self._recipe, -(-len(prompt) // PAGE), self._kernel)
        mark, logits, first = long_mark(self._recipe, len(prompt)), [], 0
        for index, count in enumerate(counts):
            at, prefill = np.arange(first, first + count), index < len(chunks)
            block = count * prefill if alone else self._most
            batch = _batch(at, len(prompt), self._kernel, block, prefill=prefill)
            given = (_rows(each, block, prefill) for each in (prompt[at], at + mark))
            found, pages = self._step(self._module, *given, pages, batch)
            logits.append(np.asarray(found)[prefill : prefill + count])
            first += count
        return np.concatenate(logits)


def _step(module: Any, tokens: Any, positions: Any, pages: Any, batch: PagedBatch) -> Any:
    hidden, pages = module(tokens, positions, pages, batch)
    return module.logits(hidden), pages


def _rows(of: np.ndarray, block: int, prefill: bool) -> jax.Array:
    """i32[1 + block]: these tokens' numbers in the decode row or in the block, zeros elsewhere."""
    idle = 1 + block - len(of) - prefill
    return jnp.asarray(np.pad(of, (int(prefill), idle)), jnp.int32)


def _batch(at: np.ndarray, count: int, kernel: Kernel, block: int, *, prefill: bool) -> PagedBatch:
    """Places of the tokens at these positions of a sequence of `count`."""
    table = np.arange(1, -(-count // PAGE) + 1)[None]
    limits = np.zeros((1, max(block, 1)))
    if prefill:
        limits[0, : len(at)] = at + 1
    blocks = min(block, 1)
    batch = PagedBatch(
        pages=_rows(1 + at // PAGE, block, prefill),
        offsets=_rows(at % PAGE, block, prefill),
        decode_tables=jnp.asarray(table * (not prefill), jnp.int32),
        decode_limits=jnp.asarray([[0 if prefill else at[0] + 1]], jnp.int32),
        block_tables=jnp.asarray((table * prefill)[:blocks], jnp.int32),
        block_limits=jnp.asarray(limits[:blocks], jnp.int32),
        kernel=kernel,
    )
    return batch.with_states(PAGE)
