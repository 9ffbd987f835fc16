"""A model of sounds that is arithmetic: window by window it says a, b, c, ... of one second each.

A prompt is said back in capitals at the first window. Windows hold 1 s, and every window is German
unless its language was given.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from model_server.loading.audio.loaded_audio import LoadedAudio, SpeechWindow, WrittenWindow
from model_server.loading.loaded_batches import ONLY, Batching
from model_server.models.audio.speech_tokens import SpeechTokens
from model_server.sharing.audio.process import SoundForm
from model_server.text.tokenizer import HfTokenizer
from tests.golden.sound_tokenizer import IDS, LANGUAGES, tokenizer_json

POSITIONS = 50
MEMORY = 700
TOKENS = SpeechTokens(
    start=IDS["<|startoftranscript|>"],
    end=IDS["<|endoftext|>"],
    previous=IDS["<|startofprev|>"],
    no_speech=IDS["<|nospeech|>"],
    no_timestamps=IDS["<|notimestamps|>"],
    languages={code: IDS[f"<|{code}|>"] for code in LANGUAGES},
    tasks={name: IDS[f"<|{name}|>"] for name in ("transcribe", "translate")},
    suppressed=(),
    suppressed_first=(),
    most_initial=50,
)


class FakeAudioRunner:
    """Holds every batch until the gate opens."""

    def __init__(self, gate: threading.Event) -> None:
        self.closed = False
        self.batches: list[int] = []
        self.windows: list[SpeechWindow] = []
        self.logprob = 0.0  # of every answer
        self.no_speech = 0.0
        self._gate = gate
        self._tokenizer = HfTokenizer(tokenizer_json(POSITIONS))

    def group(self, window: SpeechWindow) -> None:
        pass

    def run(self, windows: Sequence[SpeechWindow]) -> list[WrittenWindow]:
        self.batches.append(len(windows))
        assert self._gate.wait(60)
        return [self._written(each) for each in windows]

    def _written(self, window: SpeechWindow) -> WrittenWindow:
        letter = chr(ord("a") + len(self.windows) % 26)
        self.windows.append(window)
        said = self._tokenizer.encode(f" {letter}", add_bos=False)
        tokens = (TOKENS.timestamps, *said, TOKENS.timestamps + POSITIONS)
        language = TOKENS.languages["de"] if window.language is None else window.language
        written = WrittenWindow(tokens, self.logprob, self.no_speech, language)
        looked = looked_at(len(said), window.times) if window.times else None
        return written._replace(looked=looked)

    def close(self) -> None:
        self.closed = True


def looked_at(said: int, positions: int) -> np.ndarray:
    """f32[1, T, S]: token by token, 0.2 s each."""
    made = np.full((1, said + 4, positions), 0.01, np.float32)
    for token in range(said + 1):
        made[0, token + 2, 10 * token : 10 * token + 10 if token < said else None] = 0.5
    return made


def fake_audio(gate: threading.Event, queue: int = 4) -> LoadedAudio:
    return LoadedAudio(
        runner=FakeAudioRunner(gate),
        tokenizer=HfTokenizer(tokenizer_json(POSITIONS)),
        tokens=TOKENS,
        form=SoundForm(8, 2 * POSITIONS, 60),
        frames=2 * POSITIONS,
        context=48,
        times_words=True,
        batching={ONLY: Batching(2, 0.005, queue)},
        memory=MEMORY,
    )
