"""Log-mel spectrograms as Whisper and as Gemma take them, in numpy.

Whisper: frames of 25 ms every 10 ms under a Hann window, mirrored at both ends; triangular filters
of equal area on Slaney's mel scale; base-10 logarithms, at most 8 below the largest, then
(x + 4) / 4. Gemma: frames of a `MelForm` without an overlap at the ends; triangular filters of
equal height on HTK's mel scale over magnitudes; natural logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from model_server.sharing.audio.process import HOP, RATE
from sax.errors import CheckpointError

_WINDOW = 400  # samples of a frame
_PIECE = 4096  # frames that are computed together
_FLOOR = 1e-10
_RANGE = 8.0
_MOST_BINS = 1024
_MEL_3N: Mapping[str, Any] = {
    "fft_overdrive": True,
    "frame_length_ms": 32.0,
    "max_frequency": 7600.0,
    "mel_floor": 1e-5,
    "min_frequency": 125.0,
    "preemphasis": 0.97,
}
_MEL_4: Mapping[str, Any] = {
    "fft_overdrive": False,
    "frame_length_ms": 20.0,
    "max_frequency": 8000.0,
    "mel_floor": 1e-3,
    "min_frequency": 0.0,
    "preemphasis": 0.0,
}
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


def mel_form_3n(given: Mapping[str, Any], bins: int) -> MelForm:
    """Return the form that Gemma 3n's preprocessor_config.json says. Raises CheckpointError."""
    return _mel_form(given, _MEL_3N, bins)


def mel_form_4(given: Mapping[str, Any]) -> MelForm:
    """As `mel_form_3n`, of Gemma 4, whose config.json does not say the bins."""
    bins = given.get("feature_size", 128)
    if type(bins) is not int or not 1 <= bins <= _MOST_BINS:
        raise CheckpointError(_wrong("feature_size", bins, f"a number from 1 to {_MOST_BINS}"))
    return _mel_form(given, _MEL_4, bins)


def _mel_form(given: Mapping[str, Any], usual: Mapping[str, Any], bins: int) -> MelForm:
    """Return the spectrogram that a checkpoint says its sounds become. Raises CheckpointError.

    usual: the values of what it does not say. frame_length, hop_length and fft_length, which
    published files have, too, follow from others and are not read, as in transformers.
    """
    fixed = {"dither": 0.0, "feature_size": bins, "padding_side": "right", "padding_value": 0.0}
    for key, value in {**fixed, "sampling_rate": RATE}.items():
        if given.get(key, value) != value:
            raise CheckpointError(_wrong(key, given[key], repr(value)))
    number = {
        key: _number(given, key, value) for key, value in usual.items() if type(value) is float
    }
    frame = round(RATE * number["frame_length_ms"] / 1000)
    hop = round(RATE * _number(given, "hop_length_ms", 10.0) / 1000)
    low, high = number["min_frequency"], number["max_frequency"]
    if frame < 2 or hop < 1 or not 0 <= low < high:
        raise CheckpointError(
            f"preprocessor_config.json describes frames of {frame} samples, {hop} apart, from "
            f"{low} to {high} Hz: give longer ones, and frequencies that ascend"
        )
    fft = 2 ** math.ceil(math.log2(frame))
    return MelForm(
        bins=bins,
        frame=frame,
        hop=hop,
        fft=fft * (2 if _flag(given, "fft_overdrive", usual["fft_overdrive"]) else 1),
        low=low,
        high=high,
        emphasis=number["preemphasis"],
        first_kept=_flag(given, "preemphasis_htk_flavor", True),
        floor=number["mel_floor"],
        floor_added=usual is _MEL_4,
        scale=_number(given, "input_scale_factor", 1.0),
        mean=_bins(given, "per_bin_mean", bins),
        deviation=_bins(given, "per_bin_stddev", bins),
    )


def _number(given: Mapping[str, Any], key: str, usual: float) -> float:
    value = given.get(key, usual)
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise CheckpointError(_wrong(key, value, "a number from 0"))
    return float(value)


def _flag(given: Mapping[str, Any], key: str, usual: bool) -> bool:
    value = given.get(key, usual)
    if type(value) is not bool:
        raise CheckpointError(_wrong(key, value, "true or false"))
    return value


def _bins(given: Mapping[str, Any], key: str, bins: int) -> tuple[float, ...]:
    """Return a number of each bin; (): none is given. Raises CheckpointError."""
    value = given.get(key)
    if value is None:
        return ()
    try:
        made = np.asarray(value, np.float64).reshape(bins)
    except (TypeError, ValueError):
        raise CheckpointError(_wrong(key, value, f"{bins} numbers or null")) from None
    return tuple(map(float, made))


def _wrong(key: str, value: object, wanted: str) -> str:
    return (
        f"preprocessor_config.json has {key} = {value!r}; this model's sounds are served with "
        f"{wanted}"
    )


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
