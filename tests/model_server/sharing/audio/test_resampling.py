from __future__ import annotations

import numpy as np
import pytest

from model_server.sharing.audio.resampling import Resampler


def resampled(samples: np.ndarray, rate: int, pieces: int = 1) -> np.ndarray:
    resampler = Resampler(rate, 16_000)
    made = [resampler.feed(each) for each in np.array_split(samples, pieces)]
    return np.concatenate([*made, resampler.flush()])


def tone(hertz: float, rate: int, seconds: float = 0.5) -> np.ndarray:
    return np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate).astype(np.float32)


@pytest.mark.extended
def test_a_tone_stays_the_same_tone() -> None:
    wanted = tone(440, 16_000)[500:-500]
    for rate in (4000, 8000, 11025, 16000, 22050, 44100, 48000, 96000, 192000):
        made = resampled(tone(440, rate), rate)
        assert len(made) == 8000, rate
        np.testing.assert_allclose(made[500:-500], wanted, atol=1e-4, err_msg=f"{rate} Hz")


@pytest.mark.extended
def test_pieces_of_any_size_give_the_same_samples() -> None:
    for rate in (22050, 44100, 48000, 44101):
        sound = np.random.default_rng(0).standard_normal(rate // 8).astype(np.float32)
        whole = resampled(sound, rate)
        for pieces in (7, 100):
            made = resampled(sound, rate, pieces)
            np.testing.assert_allclose(made, whole, atol=1e-5, err_msg=f"{rate} Hz, {pieces}")


def test_what_16_khz_cannot_hold_is_removed_and_not_folded_down() -> None:
    for hertz in (8800, 9000, 15_000, 20_000):
        assert np.abs(resampled(tone(hertz, 48_000), 48_000)[300:-300]).max() < 1e-3


def test_a_sound_shorter_than_the_filter_is_resampled() -> None:
    assert len(resampled(np.ones(3, np.float32), 48_000)) == 1
    assert len(resampled(np.zeros(0, np.float32), 48_000)) == 0
