"""Constants that hash runs of tokens into the rows of a table, as Qwen4 derives them.

Source: transformers' `models/qwen4_exp`. Each head of a table reads a row of its own part of it,
whose size is a prime; the multipliers follow from a seed by SplitMix64 (Steele, Lea and Flood 2014,
https://doi.org/10.1145/2660193.2660195).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, count, islice
from typing import Any

from sax.errors import CheckpointError

_WORD = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15  # SplitMix64's step, and its two multipliers
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_APART = 10007  # between the seeds of two tables
_MOST_ROWS, _MOST_HEADS, _MOST_TOKENS = 2**30, 1024, 16
_USUAL = {
    "heads_per_ngram": 8,
    "make_ngram_vocab_size_divisible_by": 128,
    "ngram_size": 3,
    "ngram_vocab_size_base": 20_000_000,
    "seed": 1234,
}


@dataclass(frozen=True, slots=True)
class NGramHashes:
    """Hash functions of one layer: the last tokens of a position choose rows of its table."""

    multipliers: tuple[int, ...]  # of the token itself, of the one before it, ...; below 2**63
    sizes: tuple[int, ...]  # rows of each head: first those of pairs, then of three tokens, ...
    rows: int  # of the whole table, padding included

    @property
    def offsets(self) -> tuple[int, ...]:
        """First row of each head."""
        return (0, *accumulate(self.sizes[:-1]))


def ngram_hashes(config: Mapping[str, Any], tables: int) -> tuple[NGramHashes, ...]:
    """Return the hashes of a model's tables, from its config.json. Raises CheckpointError."""
    longest = _whole(config, "ngram_size", 2, _MOST_TOKENS)
    heads = (longest - 1) * _whole(config, "heads_per_ngram", 1, _MOST_HEADS)
    base = _whole(config, "ngram_vocab_size_base", 1, _MOST_ROWS)
    unit = _whole(config, "make_ngram_vocab_size_divisible_by", 1, _MOST_ROWS)
    vocab = _whole(config, "vocab_size", 1, _MOST_ROWS)
    seed = _whole(config, "seed", 0, _WORD)
    if tables * heads > _MOST_HEADS or base * heads > _MOST_ROWS:
        raise CheckpointError(
            f"config.json has ngram_vocab_size_base = {base} and {heads} heads in each of {tables} "
            f"tables of n-grams: a table may have {_MOST_ROWS} rows, and all {_MOST_HEADS} heads"
        )
    primes = list(islice(_primes(base), tables * heads))

    def table(index: int) -> NGramHashes:
        sizes = tuple(primes[index * heads : (index + 1) * heads])
        multipliers = _multipliers(vocab, longest, seed + _APART * index)
        return NGramHashes(multipliers, sizes, math.ceil(sum(sizes) / unit) * unit)

    return tuple(map(table, range(tables)))


def _whole(config: Mapping[str, Any], key: str, least: int, most: int) -> int:
    value = config.get(key)
    value = _USUAL.get(key) if value is None else value
    if type(value) is not int or not least <= value <= most:
        raise CheckpointError(
            f"config.json has {key} = {value!r}; tables of n-grams need a whole number from "
            f"{least} to {most}"
        )
    return value


def _multipliers(vocab: int, tokens: int, seed: int) -> tuple[int, ...]:
    """Odd numbers of which a token's multiple is below 2**63."""
    half = max(1, ((1 << 63) - 1) // vocab // 2)
    return tuple(2 * (_mixed(seed + _GAMMA * (at + 1)) % half) + 1 for at in range(tokens))


def _mixed(state: int) -> int:
    value = (state + _GAMMA) & _WORD
    value = ((value ^ (value >> 30)) * _FIRST) & _WORD
    value = ((value ^ (value >> 27)) * _SECOND) & _WORD
    return value ^ (value >> 31)


def _primes(least: int) -> Iterator[int]:
    """Yield the primes from `least` on."""
    for number in count(max(least, 2)):
        if all(number % divisor for divisor in range(2, math.isqrt(number) + 1)):
            yield number
