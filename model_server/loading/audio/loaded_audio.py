"""A loaded model that writes down speech, window by window."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Event
from typing import NamedTuple

import numpy as np

from model_server.loading.loaded_batches import BatchRunner, LoadedBatches
from model_server.models.audio.speech_tokens import SpeechTokens
from model_server.sharing.audio.process import SoundForm
from model_server.text.tokenizer import HfTokenizer

WAIT_S = 0.005  # well below one window


class SpeechWindow(NamedTuple):
    """Sound of one window to write down, and how."""

    mels: np.ndarray  # f32[frames, bins]; the rest of the window is zeros
    previous: tuple[int, ...]  # tokens of the text before it
    language: int | None  # token; None: the one that is heard, if there are several
    task: int | None  # token
    temperature: float
    seed: int
    limit: int  # tokens of the answer
    gone: Event  # set once nobody waits for it
    times: int = 0  # positions of the encoder that hold sound, to time each token; 0: none is timed


class WrittenWindow(NamedTuple):
    """Answer for one window."""

    tokens: tuple[int, ...]  # with timestamps, without the end
    logprob: float  # of all tokens and the end
    no_speech: float  # probability
    language: int | None  # token
    # f32[A, T, S]: of each head that follows the sound, what it looks at for each token of the text
    # alone, with the one before it and the end; None: not asked for
    looked: np.ndarray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedAudio(LoadedBatches):
    """Writes down windows; a batch ends early once nobody waits for any of its windows."""

    runner: BatchRunner[SpeechWindow, WrittenWindow]
    tokenizer: HfTokenizer
    tokens: SpeechTokens
    form: SoundForm  # of sounds that windows are cut from
    frames: int  # of one window
    context: int  # tokens of prompt and answer
    times_words: bool = False  # it has heads that follow the sound
    methods: tuple[str, ...] = ("am.recognize", "am.transcribe")

    @property
    def kind(self) -> str:
        return "a model of sounds"
