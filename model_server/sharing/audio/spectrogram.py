"""Log-mel spectrograms as Whisper and as Gemma take them, in numpy.

Whisper: frames of 25 ms every 10 ms under a Hann window, mirrored at both ends; triangular filters
of equal area on Slaney's mel scale; base-10 logarithms, at most 8 below the largest, then
(x + 4) / 4. Gemma: frames of a `MelForm` without an overlap at the ends; triangular filters of
equal height on HTK's mel scale over magnitudes; natural logarithms.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    filters, window = mel_filters(bins), _hann(_WINDOW)
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
    filters, window = _htk_filters(form), _hann(form.frame)
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


@cache
def _htk_filters(form: MelForm) -> np.ndarray:
    """f64[fft // 2 + 1, bins]: triangles of height 1, evenly spaced on HTK's scale."""
    low, high = (2595.0 * np.log10(1.0 + hertz / 700.0) for hertz in (form.low, form.high))
    edges = 700.0 * (10.0 ** (np.linspace(low, high, form.bins + 2) / 2595.0) - 1.0)
    hertz = np.arange(form.fft // 2 + 1) * (RATE / form.fft)
    widths, away = np.diff(edges), edges - hertz[:, None]
    rising, falling = -away[:, :-2] / widths[:-1], away[:, 2:] / widths[1:]
    return np.maximum(0.0, np.minimum(rising, falling))


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
