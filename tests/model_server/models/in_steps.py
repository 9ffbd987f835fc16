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


def logits_in_steps(
    module: Any, recipe: Any, prompt: np.ndarray, chunks: Sequence[int], kernel: Kernel
) -> np.ndarray:
    """f32[S, V]: chunks of these sizes are prefilled, each token after them is a decode step."""
    assert sum(chunks) < len(prompt)
    counts = [*chunks, *[1] * (len(prompt) - sum(chunks))]
    pages = empty_pages(recipe, -(-len(prompt) // PAGE), kernel)

    @jax.jit  # a function of this call: as many programs as these have to go when it is done
    def step(module: Any, tokens: Any, positions: Any, pages: Any, batch: PagedBatch) -> Any:
        hidden, pages = module(tokens, positions, pages, batch)
        return module.logits(hidden), pages

    logits, first = [], 0
    for index, count in enumerate(counts):
        at = np.arange(first, first + count)
        batch, skipped = _batch(at, len(prompt), kernel, prefill=index < len(chunks))
        tokens, positions = (
            jnp.asarray(np.pad(a, (skipped, 0)), jnp.int32)
            for a in (prompt[at], at + long_mark(recipe, len(prompt)))
        )
        found, pages = step(module, tokens, positions, pages, batch)
        logits.append(np.asarray(found[skipped:]))
        first += count
    return np.concatenate(logits)


def _batch(at: np.ndarray, count: int, kernel: Kernel, *, prefill: bool) -> tuple[PagedBatch, int]:
    """Places of the tokens at these positions, and how many idle decode rows come before them."""
    pages = -(-count // PAGE)
    table = jnp.arange(1, pages + 1, dtype=jnp.int32)[None]
    idle = jnp.zeros((1, pages), jnp.int32)
    limits = jnp.asarray(at[None] + 1, jnp.int32)
    skipped = 1 if prefill else 0
    batch = PagedBatch(
        pages=jnp.asarray(np.pad(1 + at // PAGE, (skipped, 0)), jnp.int32),
        offsets=jnp.asarray(np.pad(at % PAGE, (skipped, 0)), jnp.int32),
        decode_tables=idle if prefill else table,
        decode_limits=jnp.zeros((1, 1), jnp.int32) if prefill else limits,
        block_tables=table if prefill else jnp.zeros((0, pages), jnp.int32),
        block_limits=limits if prefill else jnp.zeros((0, 1), jnp.int32),
        kernel=kernel,
    )
    return batch.with_states(PAGE), skipped
