"""Small numbers packed without gaps into words of 32 bits, the lowest bits first."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from model_server.checkpoints.huggingface.safetensors_tensors import StoredTensors

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # the nibble of a word that holds column 0, 1, ...


def words_of(count: int, bits: int) -> int:
    """Return how many words hold `count` numbers."""
    return -(-count * bits // 32)


def unpack_words(words: np.ndarray, bits: int, order: Sequence[int] | None = None) -> np.ndarray:
    """Unpack i32[n, w] to u8[n, w * 32 / bits], in the given order within each word.

    Numbers of 3, 5, 6 and 7 bits cross the borders of words; a row that is cut off is padded.
    """
    per_run, count = _run(bits)
    rows, width = words.shape
    runs = -(-width // per_run)
    padded = np.zeros((rows, runs * per_run), np.uint32)
    padded[:, :width] = np.ascontiguousarray(words).view(np.uint32)
    split = padded.reshape(rows, runs, per_run)
    values = np.empty((rows, runs, count), np.uint8)
    mask = np.uint32((1 << bits) - 1)
    for place in range(count):
        word, shift = divmod(bits * (order[place] if order else place), 32)
        number = split[..., word] >> np.uint32(shift)
        if shift + bits > 32:
            number |= split[..., word + 1] << np.uint32(32 - shift)
        values[..., place] = number & mask
    return values.reshape(rows, -1)


def pack_words(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Pack u8[n, count] into i32[n, words], for bits that divide 32; the inverse of unpacking."""
    together = 32 // bits
    rows, count = numbers.shape
    padded = np.zeros((rows, words_of(count, bits) * together), np.uint32)
    padded[:, :count] = numbers
    shifts = np.arange(together, dtype=np.uint32) * np.uint32(bits)
    split = padded.reshape(rows, -1, together) << shifts
    return np.bitwise_or.reduce(split, axis=-1).view(np.int32)


def unpack_span(
    stored: StoredTensors,
    name: str,
    bits: int,
    lines: slice,
    span: slice,
    order: Sequence[int] | None = None,
) -> np.ndarray:
    """Read u8[lines, span] of a tensor whose words pack numbers along its rows."""
    per_run, count = _run(bits)
    width = stored.shape(name)[1]
    first, last = span.start // count, -(-span.stop // count)
    words = stored.read(name, (lines, slice(first * per_run, min(last * per_run, width))))
    skip = span.start - first * count
    return unpack_words(words, bits, order)[:, skip : skip + span.stop - span.start]


def unpack_span_down(
    stored: StoredTensors, name: str, bits: int, span: slice, columns: slice
) -> np.ndarray:
    """Read u8[columns, span] of a tensor whose words pack numbers along its columns."""
    per_run, count = _run(bits)
    height = stored.shape(name)[0]
    first, last = span.start // count, -(-span.stop // count)
    words = stored.read(name, (slice(first * per_run, min(last * per_run, height)), columns))
    skip = span.start - first * count
    return unpack_words(words.T, bits)[:, skip : skip + span.stop - span.start]


def _run(bits: int) -> tuple[int, int]:
    """Return the fewest words that hold whole numbers, and how many numbers."""
    together = math.lcm(bits, 32)
    return together // 32, together // bits
