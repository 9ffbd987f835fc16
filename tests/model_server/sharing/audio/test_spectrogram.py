from __future__ import annotations

import numpy as np

from model_server.sharing.audio.spectrogram import mel_filters, spectrogram


def test_filters_rise_and_fall_between_their_neighbours() -> None:
    for bins in (80, 128):
        filters = mel_filters(bins)
        assert filters.shape == (201, bins)
        peaks = filters.argmax(0)
        assert (np.diff(peaks) >= 0).all()
        assert (filters.max(0) > 0).all()


def test_silence_is_flat_and_a_tone_stands_in_its_bin() -> None:
    silence = spectrogram(np.zeros(16_000, np.float32), 80)
    assert silence.shape == (100, 80)
    np.testing.assert_allclose(silence, (-10 + 4) / 4, atol=1e-6)
    tone = spectrogram(np.sin(np.arange(16_000) * 2 * np.pi / 16).astype(np.float32), 80)
    loudest = tone[10:-10].argmax(1)
    assert len(set(loudest.tolist())) == 1
    assert abs(int(mel_filters(80)[25].argmax()) - int(loudest[0])) <= 1  # 1 kHz
    assert tone.max() - tone.min() <= 2.0 + 1e-6  # 8 in the logarithm


def test_a_long_sound_is_computed_in_pieces_without_a_seam() -> None:
    sound = np.random.default_rng(0).standard_normal(5000 * 160).astype(np.float32)
    whole = spectrogram(sound, 80)
    part = spectrogram(sound[4000 * 160 :], 80)
    np.testing.assert_allclose(whole[4010:], part[10:], atol=0.1)
    assert whole.shape == (5000, 80)
