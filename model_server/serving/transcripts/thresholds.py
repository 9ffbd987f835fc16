"""Decides whether a window's answer is good, must be tried again warmer, or is silence. Pure.

The numbers are those of section 4.5 of arXiv:2212.04356.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

from model_server.loading.audio.loaded_audio import WrittenWindow

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
MOST_COMPRESSED = 2.4  # more: the text repeats itself
LEAST_LOGPROB = -1.0  # mean of a token; less: the model does not believe it
SILENCE = 0.6  # probability of no speech
FORGETS_ABOVE = 0.5  # temperature of a text that is no guide to what follows


class Judged(NamedTuple):
    """A window's answer and what speaks for and against it."""

    window: WrittenWindow
    text: str
    temperature: float
    avg_logprob: float
    compression_ratio: float

    @property
    def is_silence(self) -> bool:
        return self.window.no_speech > SILENCE and self.avg_logprob < LEAST_LOGPROB

    @property
    def is_bad(self) -> bool:
        repeats = self.compression_ratio > MOST_COMPRESSED
        return (repeats or self.avg_logprob < LEAST_LOGPROB) and not self.is_silence


def judged(window: WrittenWindow, text: str, temperature: float) -> Judged:
    mean = window.logprob / (len(window.tokens) + 1)
    return Judged(window, text, temperature, mean, compression_ratio(text))


def compression_ratio(text: str) -> float:
    """Return how many times shorter zlib makes a text; 0 for none."""
    plain = text.encode(errors="replace")
    return len(plain) / len(zlib.compress(plain)) if plain else 0.0


def temperatures_of(temperature: float) -> tuple[float, ...]:
    """Return those to try in turn: a caller's own only, or for 0 warmer ones, too."""
    return (temperature,) if temperature else TEMPERATURES
