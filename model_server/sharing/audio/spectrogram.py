"""Log-mel spectrograms as Whisper takes them, in numpy.

Frames of 25 ms every 10 ms under a Hann window, mirrored at both ends; triangular filters of equal
area on Slaney's mel scale; base-10 logarithms, at most 8 below the largest, then (x + 4) / 4.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from model_server.sharing.audio.process import HOP, RATE

_WINDOW = 400  # samples of a frame
_PIECE = 4096  # frames that are computed together
_FLOOR = 1e-10
_RANGE = 8.0
# Slaney's scale: linear up to 1 kHz, which is 15 mels, then 27 mels for each factor of 6.4.
_KNEE_HZ, _KNEE_MEL = 1000.0, 15.0
_STEP = np.log(6.4) / 27.0


def spectrogram(samples: np.ndarray, bins: int) -> np.ndarray:
    """Map samples f32[N] at 16 kHz to f32[N // 160, bins]; N: at least 400."""
    made = np.empty((len(samples) // HOP, bins), np.float32)
    padded = np.pad(samples.astype(np.float32, copy=False), _WINDOW // 2, mode="reflect")
    frames = sliding_window_view(padded, _WINDOW)[::HOP]
    filters, window = mel_filters(bins), _hann()
    for start in range(0, len(made), _PIECE):
        piece = made[start : start + _PIECE]
        spectrum = np.fft.rfft(frames[start : start + len(piece)] * window)
        power = np.square(np.abs(spectrum)).astype(np.float32)
        piece[:] = np.log10(np.maximum(power @ filters, _FLOOR))
    np.maximum(made, made.max() - _RANGE, out=made)
    made += 4.0
    made /= 4.0
    return made


@cache
def mel_filters(bins: int) -> np.ndarray:
    """f32[201, bins]"""
    hertz = np.linspace(0.0, RATE / 2, _WINDOW // 2 + 1)
    edges = _to_hertz(np.linspace(0.0, _to_mel(RATE / 2), bins + 2))
    widths = np.diff(edges)
    away = edges - hertz[:, None]  # [201, bins + 2]
    rising = -away[:, :-2] / widths[:-1]
    falling = away[:, 2:] / widths[1:]
    filters = np.maximum(0.0, np.minimum(rising, falling))
    return (filters * (2.0 / (edges[2:] - edges[:-2]))).astype(np.float32)


def _to_mel(hertz: float) -> float:
    if hertz < _KNEE_HZ:
        return _KNEE_MEL * hertz / _KNEE_HZ
    return _KNEE_MEL + float(np.log(hertz / _KNEE_HZ)) / float(_STEP)


def _to_hertz(mels: np.ndarray) -> np.ndarray:
    above = _KNEE_HZ * np.exp(_STEP * (mels - _KNEE_MEL))
    return np.where(mels < _KNEE_MEL, _KNEE_HZ * mels / _KNEE_MEL, above)


@cache
def _hann() -> np.ndarray:
    """f32[400], periodic"""
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WINDOW) / _WINDOW)).astype(np.float32)
