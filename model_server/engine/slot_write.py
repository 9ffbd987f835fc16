"""Packs the edits of a sequence that takes a slot into one array of numbers. No jax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from model_server.engine.limits import EngineLimits
from model_server.engine.types import Sampling, SlotMask, SlotSampling
from sax.errors import InvalidRequest

MOST_BIASES = 512  # of one request: logit_bias, and the ends that min_tokens holds back
MOST_BAD_WORDS = 128  # of one request: 64 texts, each with and without a space
BAD_WORD_TOKENS = 16  # of one bad word
_ALWAYS = 2**31 - 1


@dataclass(frozen=True)
class WriteLayout:
    """Offsets and shapes of the vector's parts."""

    context: int  # S: tokens of prompt and answer, at most
    vocab: int

    @cached_property
    def parts(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        """Map each name to (offset, shape)."""
        sizes = {
            "slot": 1,
            "prompt": 1,  # tokens that are the prompt's
            "tokens": self.context,  # V: none
            "bias_tokens": MOST_BIASES,  # V: none
            "bias_values": MOST_BIASES,  # bits of f32
            "bias_until": MOST_BIASES,  # first position at which the bias no longer holds
            "allowed": -(-self.vocab // 32),  # a bit per token
            # Rows of BAD_WORD_TOKENS, padded on the left with -1; last token V: no word
            "bad_words": MOST_BAD_WORDS * BAD_WORD_TOKENS,
            "recent": BAD_WORD_TOKENS - 1,  # last tokens of the answer, the newest last; -1: none
        }
        offset, parts = 0, {}
        for name, size in sizes.items():
            parts[name] = (offset, (size,))
            offset += size
        return parts

    @cached_property
    def size(self) -> int:
        offset, shape = list(self.parts.values())[-1]
        return offset + math.prod(shape)


def check_biases(sampling: Sampling) -> None:
    """Raise InvalidRequest for more biases than a slot holds."""
    held_back = len(sampling.ends) if sampling.min_tokens else 0
    count = len(sampling.logit_bias) + held_back
    if count > MOST_BIASES:
        raise InvalidRequest(
            f"logit_bias has {len(sampling.logit_bias)} tokens and min_tokens holds back "
            f"{held_back}; together at most {MOST_BIASES} are allowed: send fewer biases or stop "
            "tokens",
            param="logit_bias",
        )


def pack(change: SlotSampling, limits: EngineLimits, vocab: int) -> np.ndarray:
    """Return the vector i32[size] of a layout."""
    layout = WriteLayout(limits.max_context, vocab)
    vector = np.zeros(layout.size, np.int32)
    views = {name: vector[at : at + size] for name, (at, (size,)) in layout.parts.items()}
    views["slot"][0], views["prompt"][0] = change.slot, change.prompt
    views["tokens"].fill(vocab)
    views["tokens"][: len(change.tokens)] = [vocab if t < 0 else t for t in change.tokens]
    _pack_biases(change, views, vocab)
    views["allowed"][:] = _bits(change.sampling.allowed, vocab)
    _pack_bad_words(change, views, vocab)
    return vector


def pack_masks(masks: Sequence[SlotMask], rows: int, slots: int, vocab: int) -> np.ndarray:
    """Return i32[rows, 1 + ceil(V / 32)]: slots with their masks, then the scratch slot."""
    packed = np.zeros((rows, 1 + -(-vocab // 32)), np.int32)
    packed[:, 0] = slots
    for row, mask in zip(packed, masks, strict=False):
        row[0] = mask.slot
        row[1:] = np.frombuffer(mask.allowed, "<i4")
    return packed


def _pack_biases(change: SlotSampling, views: dict[str, np.ndarray], vocab: int) -> None:
    sampling = change.sampling
    biases = [(token, value, _ALWAYS) for token, value in sampling.logit_bias]
    if sampling.min_tokens:
        until = change.prompt + sampling.min_tokens
        biases += [(token, -np.inf, until) for token in sampling.ends]
    tokens, values, untils = zip(*biases, strict=True) if biases else ((), (), ())
    views["bias_tokens"].fill(vocab)
    views["bias_tokens"][: len(biases)] = tokens
    views["bias_values"].view(np.float32)[: len(biases)] = values
    views["bias_until"][: len(biases)] = untils


def _pack_bad_words(change: SlotSampling, views: dict[str, np.ndarray], vocab: int) -> None:
    words = views["bad_words"].reshape(MOST_BAD_WORDS, BAD_WORD_TOKENS)
    words.fill(-1)
    words[:, -1] = vocab
    for row, word in zip(words, change.sampling.bad_words, strict=False):
        row[-len(word) :] = word
    recent = change.tokens[change.prompt :][1 - BAD_WORD_TOKENS :]
    views["recent"].fill(-1)
    if recent:
        views["recent"][-len(recent) :] = recent


def _bits(allowed: tuple[int, ...] | None, vocab: int) -> np.ndarray:
    """Return i32[ceil(V / 32)] with bit t % 32 of word t // 32 set for each token t."""
    words = -(-vocab // 32)
    if allowed is None:
        return np.full(words, -1, np.int32)
    flags = np.zeros(32 * words, np.uint8)
    flags[list(allowed)] = 1
    return np.packbits(flags, bitorder="little").view("<i4")
