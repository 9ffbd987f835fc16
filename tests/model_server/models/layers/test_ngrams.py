"""Hashes in pairs of words equal those of whole numbers; separators hide what is before them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from model_server.checkpoints.ngram_hashes import NGramHashes, ngram_hashes
from model_server.models.layers.ngrams import DilatedConvolution, Recalling, ngram_rows


def plainly(hashes: NGramHashes, tokens: list[int]) -> list[int]:
    """Rows of the heads for one token and those before it, in whole numbers."""
    each, rows, mixed = len(hashes.sizes) // (len(tokens) - 1), list[int](), 0
    for at, (token, factor) in enumerate(zip(tokens, hashes.multipliers, strict=True)):
        mixed ^= token * factor
        heads = range((at - 1) * each, at * each) if at else ()
        rows += [mixed % hashes.sizes[head] + hashes.offsets[head] for head in heads]
    return rows


def test_rows_are_those_of_64_bit_numbers() -> None:
    vocab = 248320
    usual, *_ = ngram_hashes({"vocab_size": vocab}, 1)
    largest = NGramHashes((2**63 // 2**24 - 1,) * 4, (2**30 - 35, 2, 3, 5, 7, 11), 0)
    small = NGramHashes((1, 3), (7,), 7)
    rng = np.random.default_rng(0)
    for hashes, most in ((usual, vocab), (largest, 2**24), (small, 5)):
        tokens = rng.integers(0, most, (50, len(hashes.multipliers)))
        tokens[0], tokens[1] = most - 1, 0
        found = jax.jit(lambda given, of=hashes: ngram_rows(of, given))(jnp.asarray(tokens))
        assert found.tolist() == [plainly(hashes, row) for row in tokens.tolist()]


def test_tokens_before_a_separator_are_not_recalled() -> None:
    recalling, blank = Recalling(9), (jnp.full((2,), 9.0),)
    text = [1, 2, 9, 3, 4, 5]
    wanted = [[1, 9, 9], [2, 1, 9], [9, 2, 1], [3, 9, 9], [4, 3, 9], [5, 4, 3]]
    _, whole = recalling(blank, jnp.asarray(text, jnp.float32), jnp.int32(6))
    assert whole.tolist() == wanted
    # In two chunks, of which the first ends with padding.
    padded = jnp.asarray([*text[:2], 7, 7], jnp.float32)
    state, first = recalling(blank, padded, jnp.int32(2))
    _, second = recalling(state, jnp.asarray(text[2:], jnp.float32), jnp.int32(4))
    assert [*first[:2].tolist(), *second.tolist()] == wanted


def test_a_dilated_convolution_sees_every_so_many_inputs() -> None:
    layer = DilatedConvolution(2, 3, 4, ())
    layer.kernel[...] = jnp.asarray([[[1.0, 2.0, 3.0]], [[5.0, 6.0, 7.0]]])
    assert layer.taps[0].tolist() == [1, 0, 0, 0, 2, 0, 0, 0, 3]
    given = jnp.arange(20, dtype=jnp.float32).reshape(10, 2)
    left, made = layer(jnp.zeros((2, 8)), given, jnp.int32(10))
    assert made[9].tolist() == [2 + 2 * 10 + 3 * 18, 5 * 3 + 6 * 11 + 7 * 19]
    assert left.T.tolist() == given[2:].tolist()
