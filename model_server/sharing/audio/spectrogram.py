"""Log-mel spectrograms in numpy: frames of 25 ms every 10 ms, and triangular filters.

Whisper's: a Hann window, mirrored at both ends; filters of equal area on Slaney's mel scale;
base-10 logarithms, at most 8 below the largest, then (x + 4) / 4. Granite Speech's is that with a
finer spectrum, and filters of equal height on HTK's scale, as torchaudio makes them. Phi-4's is
Kaldi's: sharpened frames under a Hamming window, natural logarithms from 0. Gemma's: frames of a
`MelForm` without an overlap at the ends, filters of equal height on HTK's scale over magnitudes,
natural logarithms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

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
_FINE = 512  # samples that a finer spectrum is made of: a frame between zeros
_SHARPENED, _HIGHEST = 0.97, 7690.0  # of Kaldi's: the sample before that is taken away, and Hz
FRAME = _WINDOW  # samples
FINE_LEAST = _FINE // 2 + 1  # samples of the shortest sound that it can mirror


def spectrogram(samples: np.ndarray, bins: int) -> np.ndarray:
    """Map samples f32[N] at 16 kHz to f32[N // 160, bins]; N: at least 400."""
    padded = np.pad(samples.astype(np.float32, copy=False), _WINDOW // 2, mode="reflect")
    frames = sliding_window_view(padded, _WINDOW)[::HOP]
    frames = frames[: len(samples) // HOP]
    return _within_range(_logarithms(frames, _hann(_WINDOW), mel_filters(bins)))


def htk_spectrogram(samples: np.ndarray, bins: int) -> np.ndarray:
    """Map samples f32[N] at 16 kHz to f32[N // 160 + 1, bins]; N: at least FINE_LEAST."""
    padded = np.pad(samples.astype(np.float32, copy=False), _FINE // 2, mode="reflect")
    frames = sliding_window_view(padded, _FINE)[::HOP]
    window = np.pad(_hann(_WINDOW), (_FINE - _WINDOW) // 2)
    filters = htk_filters(bins).astype(np.float32)
    return _within_range(_logarithms(frames, window, filters))


def kaldi_spectrogram(samples: np.ndarray, bins: int) -> np.ndarray:
    """Map samples f32[N] at 16 kHz to f32[(N - 400) // 160 + 1, bins]; N: at least FRAME."""
    frames = sliding_window_view(samples.astype(np.float32, copy=False), _WINDOW)[::HOP]
    made, filters = np.empty((len(frames), bins), np.float32), kaldi_filters(bins)
    window = np.hamming(_WINDOW)
    for start in range(0, len(made), _PIECE):
        some = frames[start : start + _PIECE]
        before = np.concatenate([some[:, :1], some[:, :-1]], axis=1)
        sharp = (some - np.float32(_SHARPENED) * before) * np.float32(2**15)
        spectrum = np.fft.rfft(sharp * window, n=_FINE).astype(np.complex64)
        power = np.square(np.abs(spectrum))
        made[start : start + _PIECE] = np.log(np.maximum(power @ filters, np.float32(1.0)))
    return made


def _logarithms(frames: np.ndarray, window: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """f32[F, bins] of f32[F, W]"""
    made = np.empty((len(frames), filters.shape[1]), np.float32)
    for start in range(0, len(made), _PIECE):
        piece = made[start : start + _PIECE]
        spectrum = np.fft.rfft(frames[start : start + len(piece)] * window)
        power = np.square(np.abs(spectrum)).astype(np.float32)
        piece[:] = np.log10(np.maximum(power @ filters, _FLOOR))
    return made


def _within_range(made: np.ndarray) -> np.ndarray:
    """Write logarithms f32[F, bins] between a floor and their largest over themselves."""
    np.maximum(made, made.max() - _RANGE, out=made)
    made += 4.0
    made /= 4.0
    return made


@cache
def mel_filters(bins: int) -> np.ndarray:
    """f32[201, bins]"""
    edges = _to_hertz(np.linspace(0.0, _to_mel(RATE / 2), bins + 2))
    filters = _triangles(np.linspace(0.0, RATE / 2, _WINDOW // 2 + 1), edges)
    return (filters * (2.0 / (edges[2:] - edges[:-2]))).astype(np.float32)


@cache
def htk_filters(
    bins: int, fft: int = _FINE, low: float = 0.0, high: float = RATE / 2
) -> np.ndarray:
    """f64[fft // 2 + 1, bins]; HTK's scale is 2595 log10(1 + f / 700)."""
    first, last = (2595.0 * math.log10(1.0 + hertz / 700.0) for hertz in (low, high))
    edges = 700.0 * (10.0 ** (np.linspace(first, last, bins + 2) / 2595.0) - 1.0)
    return _triangles(np.arange(fft // 2 + 1) * (RATE / fft), edges)


@cache
def kaldi_filters(bins: int) -> np.ndarray:
    """f32[257, bins]; triangles on the scale itself, 1127 ln(1 + f / 700), up to 7690 Hz."""

    def mels(hertz: Any) -> Any:
        return 1127.0 * np.log(1.0 + hertz / 700.0)

    edges = np.linspace(0.0, mels(_HIGHEST), bins + 2)
    points = mels(RATE / _FINE * np.arange(_FINE // 2 + 1))
    return _triangles(points, edges).astype(np.float32)


def _triangles(points: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return [points, bins] of filters of height 1, each over three of bins + 2 edges."""
    widths = np.diff(edges)
    away = edges - points[:, None]  # [points, bins + 2]
    rising = -away[:, :-2] / widths[:-1]
    falling = away[:, 2:] / widths[1:]
    return np.maximum(0.0, np.minimum(rising, falling))


@dataclass(frozen=True, slots=True, kw_only=True)
class MelForm:
    """The spectrogram of a Universal Speech Model (arXiv:2303.01037).

    Source: `Gemma3nAudioFeatureExtractor` and `Gemma4AudioFeatureExtractor` of transformers.
    """

    bins: int
    frame: int  # samples
    hop: int  # samples between the beginnings of two frames
    fft: int  # samples that a frame is filled to
    low: float  # Hz
    high: float  # Hz
    emphasis: float  # share of the sample before that is taken off; 0.0: none
    first_kept: bool  # of a frame's first sample its own share is taken off (HTK)
    floor: float  # magnitude
    floor_added: bool  # else it is the least that counts
    scale: float = 1.0  # of samples
    mean: tuple[float, ...] = ()  # of each bin, taken off; (): nothing is
    deviation: tuple[float, ...] = ()  # of each bin, divided by; (): none

    def frames(self, samples: int) -> int:
        """Return the frames of so many samples; a frame ends before the last sample."""
        return max(0, (samples - self.frame - 1) // self.hop + 1)


def mel_frames(samples: np.ndarray, form: MelForm) -> np.ndarray:
    """Map samples f32[N] to f32[form.frames(N), bins]."""
    made = np.empty((form.frames(len(samples)), form.bins), np.float32)
    if not len(made):
        return made
    given = samples.astype(np.float32, copy=False) * np.float32(form.scale)
    whole = sliding_window_view(given, form.frame + 1)[:: form.hop]
    filters = htk_filters(form.bins, form.fft, form.low, form.high)
    window = _hann(form.frame)
    for start in range(0, len(made), _PIECE):
        frames = _emphasized(whole[start : start + _PIECE], form) * window
        heard = np.abs(np.fft.rfft(frames, form.fft)) @ filters
        heard = heard + form.floor if form.floor_added else np.maximum(heard, form.floor)
        piece = np.log(heard) - (np.asarray(form.mean) if form.mean else 0.0)
        made[start : start + _PIECE] = piece / (form.deviation or 1.0)
    return made


def _emphasized(frames: np.ndarray, form: MelForm) -> np.ndarray:
    """Map frames with the sample behind them, f32[F, frame + 1], to f32[F, frame]."""
    share = np.float32(form.emphasis)
    if share <= 0:
        return frames[:, :-1]
    if not form.first_kept:
        return frames[:, 1:] - share * frames[:, :-1]
    first = frames[:, :1] * np.float32(1.0 - form.emphasis)
    return np.concatenate([first, frames[:, 1:-1] - share * frames[:, :-2]], axis=1)


def _to_mel(hertz: float) -> float:
    if hertz < _KNEE_HZ:
        return _KNEE_MEL * hertz / _KNEE_HZ
    return _KNEE_MEL + float(np.log(hertz / _KNEE_HZ)) / float(_STEP)


def _to_hertz(mels: np.ndarray) -> np.ndarray:
    above = _KNEE_HZ * np.exp(_STEP * (mels - _KNEE_MEL))
    return np.where(mels < _KNEE_MEL, _KNEE_HZ * mels / _KNEE_MEL, above)


@cache
def _hann(size: int) -> np.ndarray:
    """f32[size], periodic"""
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)).astype(np.float32)
