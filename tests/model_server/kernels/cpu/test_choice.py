"""The native choice of tokens against XLA's, and where the vocabulary is small or strange."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.engine.sampling.drawing import RowSampling
from model_server.engine.sampling.sampler import Sampled, sample
from tests.each_case import Failures
from tests.model_server.kernels.cpu.instruction_sets import InstructionSets, instruction_sets

__all__ = ["instruction_sets"]

ROWS = 48
by_xla = jax.jit(sample)
natively = jax.jit(partial(sample, native=True))


def rows(seed: int, vocab: int) -> RowSampling:
    """Settings of every kind, each row its own."""
    rng = np.random.default_rng(seed)

    def some(of: list[float], dtype: Any = jnp.float32) -> jax.Array:
        return jnp.asarray(rng.choice(of, ROWS), dtype)

    targets = np.where(rng.random(ROWS) < 0.1, rng.integers(0, vocab, ROWS), -1)
    return RowSampling(
        temperature=some([0, 0.5, 1, 1.5]),
        top_k=some([0, 1, 5, 50, 3000, 10**6], jnp.int32),
        top_p=some([1, 0.999, 0.9, 0.5]),
        min_p=some([0, 0, 1e-4, 0.05, 0.3]),
        typical_p=some([1, 1, 0.9, 0.3]),
        seed=jnp.asarray(rng.integers(0, 2**32, (ROWS, 2)), jnp.uint32),
        position=jnp.asarray(rng.integers(0, 4000, ROWS), jnp.int32),
        target=jnp.asarray(targets, jnp.int32),
        tops=some([0, 5, 20], jnp.int32),
    )


def compare(got: Sampled, wanted: Sampled, asked: RowSampling) -> None:
    same = np.asarray(got.tokens == wanted.tokens)
    # Sums in another order may move a cut-off by a token, which seldom is the one that wins.
    assert (~same).sum() <= 1
    np.testing.assert_allclose(
        np.asarray(got.logprobs)[same], np.asarray(wanted.logprobs)[same], atol=3e-5
    )
    told = np.asarray(asked.tops) > 0
    np.testing.assert_array_equal(
        np.asarray(got.ranks)[same & told], np.asarray(wanted.ranks)[same & told]
    )
    np.testing.assert_array_equal(
        np.asarray(got.top_tokens)[told], np.asarray(wanted.top_tokens)[told]
    )
    np.testing.assert_allclose(
        np.asarray(got.top_logprobs)[told], np.asarray(wanted.top_logprobs)[told], atol=3e-5
    )


def test_tokens_and_reports_are_those_of_xla(instruction_sets: InstructionSets) -> None:
    failures = Failures()
    for vocab, spread in itertools.product([21, 300, 10_007], [0.01, 1.0, 3.0, 12.0]):
        rng = np.random.default_rng(vocab)
        logits = (rng.normal(size=(ROWS, vocab)) * spread).astype(np.float32)
        edited = logits + rng.normal(size=logits.shape).astype(np.float32) * 0.1
        edited[:, 3] = -np.inf  # not allowed
        asked = rows(int(100 * spread), vocab)
        wanted = by_xla(logits, asked, edited)
        for instructions in instruction_sets():
            with failures.of(vocab, spread, instructions):
                compare(natively(logits, asked, edited), wanted, asked)
    assert not failures, str(failures)


def test_equals_are_told_from_the_first_on(instruction_sets: InstructionSets) -> None:
    logits = np.zeros((ROWS, 40), np.float32)
    asked = rows(1, 40)._replace(
        temperature=jnp.zeros(ROWS), target=jnp.full(ROWS, -1), tops=jnp.full(ROWS, 20)
    )
    for instructions in instruction_sets():
        made = natively(logits, asked)
        assert not np.asarray(made.tokens).any(), instructions
        np.testing.assert_array_equal(made.top_tokens, np.tile(np.arange(20), (ROWS, 1)))
        assert (np.asarray(made.ranks) == 1).all(), instructions


def test_a_row_of_what_is_no_number_still_gives_a_token_of_the_vocabulary(
    instruction_sets: InstructionSets,
) -> None:
    """A neighbour's row must not care."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(ROWS, 300)).astype(np.float32)
    spoiled = logits.copy()
    spoiled[::2] = np.nan
    asked = rows(2, 300)
    for _ in instruction_sets():
        made, wanted = natively(spoiled, asked), natively(logits, asked)
        assert ((np.asarray(made.tokens) >= 0) & (np.asarray(made.tokens) < 300)).all()
        np.testing.assert_array_equal(made.tokens[1::2], wanted.tokens[1::2])
        np.testing.assert_array_equal(made.logprobs[1::2], wanted.logprobs[1::2])
