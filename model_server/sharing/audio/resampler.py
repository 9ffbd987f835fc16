"""Resamples sound piece by piece with a polyphase low-pass filter.

The filter is a sinc under a Kaiser window, cut at the lower of the two Nyquist frequencies; each
phase is computed when it is first needed, since odd rates have thousands.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

_CROSSINGS = 24  # zero crossings of the sinc on each side
_BETA = 9.0  # of the window: stop band below -90 dB
_ROLL_OFF = 0.96  # of the Nyquist frequency: room for the filter's slope


class Resampler:
    """Feed it pieces of a sound, then flush it. Equal rates pass unchanged."""

    def __init__(self, rate: int, wanted: int) -> None:
        shared = math.gcd(rate, wanted)
        self._up, self._down = wanted // shared, rate // shared
        self._cut = _ROLL_OFF * min(1.0, wanted / rate)
        self._half = 0 if rate == wanted else math.ceil(_CROSSINGS / self._cut)
        self._held = np.zeros(self._half, np.float32)  # from sample `_first - half` on
        self._first = 0  # the sample that the next output's filter is centred before
        self._made = 0
        self._given = 0
        self._filters: dict[int, np.ndarray] = {}  # by phase

    def feed(self, samples: np.ndarray) -> np.ndarray:
        """Return the samples f32[N] that can be computed so far."""
        self._given += len(samples)
        if not self._half:
            return samples
        self._held = np.concatenate([self._held, samples])
        whole = len(self._held) - 2 * self._half  # centres that have all their neighbours
        end = self._first + whole
        count = max(0, math.ceil(end * self._up / self._down) - self._made)
        return self._computed(count)

    def flush(self) -> np.ndarray:
        """Return the rest, as if silence followed."""
        if not self._half:
            return np.zeros(0, np.float32)
        silence = np.zeros(2 * self._half + 1, np.float32)
        self._held = np.concatenate([self._held, silence])
        total = math.ceil(self._given * self._up / self._down)
        return self._computed(max(0, total - self._made))

    def _computed(self, count: int) -> np.ndarray:
        out = np.zeros(count, np.float32)
        numbers = self._made + np.arange(min(count, self._up))
        neighbours = sliding_window_view(self._held, 2 * self._half + 1) if count else self._held
        for index, number in enumerate(numbers.tolist()):
            centre, phase = divmod(number * self._down, self._up)
            mine = out[index :: self._up]
            rows = neighbours[centre - self._first :: self._down][: len(mine)]
            mine[:] = rows @ self._filter(phase)
        self._made += count
        self._drop()
        return out

    def _drop(self) -> None:
        """Forget samples that no later output needs."""
        centre = self._made * self._down // self._up
        gone = min(centre - self._first, len(self._held))
        self._held, self._first = self._held[gone:], self._first + gone

    def _filter(self, phase: int) -> np.ndarray:
        """Return f32[2 half + 1] for an output that lies phase / up samples behind the centre."""
        found = self._filters.get(phase)
        if found is None:
            found = self._filters[phase] = self._computed_filter(phase / self._up)
        return found

    def _computed_filter(self, offset: float) -> np.ndarray:
        away = np.arange(-self._half, self._half + 1) - offset
        inside = np.maximum(0.0, 1.0 - np.square(away / (self._half + 1)))
        window = np.i0(_BETA * np.sqrt(inside)) / np.i0(_BETA)
        return (self._cut * np.sinc(self._cut * away) * window).astype(np.float32)
