"""A passage of Sense and Sensibility (Jane Austen, 1811) as a volunteer of LibriVox read it.

Text and recordings are in the public domain. The recordings, 16 kHz, are test data of
pocketsphinx; in the book the words "He was not" to "ill-disposed" are half a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import soundfile

RATE = 16_000
PAUSE_S = 0.5  # after each recording
_PAUSE = np.zeros(int(PAUSE_S * RATE), np.float32)

# What is said in each recording, in the words of the book.
SENTENCES = (
    "And Mr. John Dashwood had then leisure to consider how much there might be prudently in his "
    "power to do for them.",
    "He was not an ill-disposed young man,",
    "unless to be rather cold hearted and rather selfish is to be ill-disposed:",
    "Had he married a more amiable woman, he might have been made still more respectable than he "
    "was:",
    "he might even have been made amiable himself;",
)


def recordings(folder: Path) -> list[np.ndarray]:
    """Return f32[N] of each sentence."""
    paths = sorted(folder.glob("sense_and_sensibility_*.wav"))
    read = [soundfile.read(path, dtype="float32") for path in paths]
    assert [rate for _, rate in read] == [RATE] * len(SENTENCES)
    return [samples for samples, _ in read]


def passage(read: Sequence[np.ndarray]) -> np.ndarray:
    """Return f32[N]: every sentence with a pause after it."""
    return np.concatenate([part for each in read for part in (each, _PAUSE)])


def spans(read: Sequence[np.ndarray]) -> Iterator[tuple[float, float]]:
    """Yield the seconds of the passage where each sentence begins and ends."""
    start = 0
    for samples in read:
        yield start / RATE, (start + len(samples)) / RATE
        start += len(samples) + len(_PAUSE)


def words(text: str) -> list[str]:
    """Return the words of a text without case and punctuation."""
    return re.findall(r"[a-z0-9]+", text.lower())
