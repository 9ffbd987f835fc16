"""Packs the edits of a sequence that takes a slot into one array of numbers. No jax."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from model_server.engine.types import EngineLimits, Sampling, SlotSampling
from sax.errors import InvalidRequest

MOST_BIASES = 512  # of one request: logit_bias, and the ends that min_tokens holds back
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
    views["tokens"][: len(change.tokens)] = change.tokens
    _pack_biases(change, views, vocab)
    views["allowed"][:] = _bits(change.sampling.allowed, vocab)
    return vector


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


def _bits(allowed: tuple[int, ...] | None, vocab: int) -> np.ndarray:
    """Return i32[ceil(V / 32)] with bit t % 32 of word t // 32 set for each token t."""
    words = -(-vocab // 32)
    if allowed is None:
        return np.full(words, -1, np.int32)
    flags = np.zeros(32 * words, np.uint8)
    flags[list(allowed)] = 1
    return np.packbits(flags, bitorder="little").view("<i4")
