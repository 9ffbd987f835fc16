"""A model that speaks by arithmetic: a token lasts as many frames as its number says.

A frame is 100 samples of the speaker's number plus one, in hundredths. The vocabulary is the
letters; nothing stands between them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from model_server.loading.audio.loaded_synthesizer import (
    LoadedSynthesizer,
    SpeechPiece,
    SpokenPiece,
    TooLong,
)
from model_server.loading.loaded_batches import ONLY, Batching
from model_server.models.audio.synthesizer_recipe import SynthesizerBuckets
from model_server.models.audio.vits_tokenizer import VitsTokenizer

RATE, FRAME = 16_000, 100
MOST_FRAMES = 5_000


class FakeSynthesizerRunner:
    """Holds every batch until the gate opens."""

    def __init__(self, gate: threading.Event) -> None:
        self.closed = False
        self.pieces: list[SpeechPiece] = []
        self._gate = gate

    def group(self, piece: SpeechPiece) -> None:
        pass

    def run(self, pieces: Sequence[SpeechPiece]) -> list[SpokenPiece | TooLong]:
        assert self._gate.wait(60)
        self.pieces += pieces
        return [self._spoken(each) for each in pieces]

    def _spoken(self, piece: SpeechPiece) -> SpokenPiece | TooLong:
        frames = round(sum(piece.tokens) / piece.speed)
        if frames > MOST_FRAMES:
            return TooLong()
        samples = np.full(frames * FRAME, (piece.speaker + 1) / 100, np.float32)
        return SpokenPiece(samples, frames)

    def close(self) -> None:
        self.closed = True


def fake_synthesizer(gate: threading.Event, queue: int = 4) -> LoadedSynthesizer:
    letters = {chr(ord("a") + number): number + 1 for number in range(26)}
    return LoadedSynthesizer(
        runner=FakeSynthesizerRunner(gate),
        tokenizer=VitsTokenizer(
            vocabulary=letters,
            specials={},
            unknown=99,
            rows=27,
            language="",
            blanks=False,
            normalizes=True,
            romanized=False,
        ),
        voices={"default": 0, "0": 0, "1": 1, "nova": 1},
        buckets=SynthesizerBuckets((400,), (MOST_FRAMES,)),
        rate=RATE,
        frame=FRAME,
        batching={ONLY: Batching(2, 0.005, queue)},
        memory=700,
    )
