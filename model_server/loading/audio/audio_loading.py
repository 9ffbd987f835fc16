"""Loads a model of sounds: settings, compiled programs, memory plan, then weights."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event
from typing import Any

import jax
import numpy as np

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.loading.audio.audio_programs import AudioPrograms, Heard, Prompts, Texts
from model_server.loading.audio.loaded_audio import WAIT_S, LoadedAudio, SpeechWindow, WrittenWindow
from model_server.loading.audio.sound_settings import check_sound_settings
from model_server.loading.batch_plan import BatchPlan
from model_server.loading.images.decoders import check_soundfile
from model_server.loading.kinds import AskedModel
from model_server.loading.load_context import LoadContext
from model_server.loading.loaded_batches import ONLY, Batching
from model_server.loading.loaded_model import Report
from model_server.loading.weights import mismatches, read_weights
from model_server.models.audio.alignment import alignment_heads
from model_server.models.audio.audio_recipe import AudioClass, AudioRecipe
from model_server.models.audio.speech_tokens import SpeechRow, read_speech_tokens
from model_server.models.overrides import apply_overrides
from model_server.models.registry import audio_class
from model_server.sharing.audio.process import SoundForm
from sax.errors import CheckpointError, InvalidRequest
from sax.memory_parts import MemoryParts
from sax.types import ModelSpec, Progress


def plan(asked: AskedModel, context: LoadContext, report: Report) -> BatchPlan[LoadedAudio]:
    """Compile the programs of a model that writes down speech.

    Raises CheckpointError, InvalidRequest, and LoadFailed without soundfile.
    """
    check_soundfile()
    spec, checkpoint = asked.spec, asked.checkpoint
    model = audio_class(spec.model_path, asked.config)
    assert model is not None, "the kind was chosen by it"
    recipe = configured(model, spec, checkpoint)
    assert checkpoint is not None, "`configured` refuses None"
    check_sound_settings(checkpoint.folder, recipe.config)
    needed = recipe.needed(checkpoint)
    if found := next(mismatches(recipe.blueprint.declarations, needed), None):
        raise CheckpointError(found)
    tokens = read_speech_tokens(checkpoint, recipe.config)
    layout = recipe.serving.layout.placed(jax.local_devices())
    heads = alignment_heads(checkpoint.generation_config, recipe.config)
    programs = AudioPrograms(recipe, tokens, layout, heads)
    programs.compile(report)

    sizes, minutes = recipe.config, recipe.serving.max_minutes
    return BatchPlan(
        context=context,
        spec=spec,
        layout=layout,
        parts=MemoryParts(
            weights=programs.weight_bytes,
            state=programs.state_bytes,
            workspace=programs.workspace,
        ),
        runner=lambda report: AudioBatches(
            programs, read_weights(recipe.blueprint.declarations, needed, report, layout)
        ),
        loaded=lambda **fields: LoadedAudio(
            tokenizer=checkpoint.tokenizer(),
            tokens=tokens,
            form=SoundForm(sizes.bins, sizes.frames, 60 * minutes),
            frames=sizes.frames,
            context=sizes.context,
            times_words=bool(heads),
            batching={ONLY: Batching(max(programs.sizes), WAIT_S, context.config.queue)},
            **fields,
        ),
    )


def configured(model: AudioClass, spec: ModelSpec, checkpoint: Checkpoint | None) -> AudioRecipe:
    """Return the recipe of a publish. Raises InvalidRequest, CheckpointError."""
    if checkpoint is None:
        raise InvalidRequest(
            f"{model.path} takes its sizes from a checkpoint, not from None", param="checkpoint"
        )
    values = apply_overrides(model.overridable, spec.overrides, model.path)
    return model.configure(checkpoint.config, values)


class AudioBatches:
    """Programs and weights of a model of sounds. Not thread-safe: one thread calls it."""

    def __init__(self, programs: AudioPrograms, leaves: Sequence[jax.Array]) -> None:
        self._programs = programs
        self._leaves = tuple(leaves)
        self.closed = False

    def group(self, window: SpeechWindow) -> None:
        """All windows may share a batch."""

    def run(self, windows: Sequence[SpeechWindow]) -> list[WrittenWindow]:
        """Return what is said in each window; at most the largest batch."""
        size = next(size for size in self._programs.sizes if size >= len(windows))
        padded = [*windows, *[windows[0]] * (size - len(windows))]
        cross = self._programs.encode(self._leaves, self._mels(padded))
        padded = self._with_languages(padded, cross)
        cache, row, heard = self._read(padded, cross)
        while not np.asarray(row.done).all() and not all(each.gone.is_set() for each in windows):
            cache, row = self._programs.choose(self._leaves, cross, cache, row)
        written = _written(padded, row, heard)
        if any(each.times for each in windows):
            written = self._timed(padded, written, cross)
        return written[: len(windows)]

    def warm(self, report: Report) -> None:
        """Run every program once, so that no request pays for a first run."""
        config, tokens = self._programs.recipe.config, self._programs.tokens
        times = config.positions if self._programs.heads else 0
        for done, size in enumerate(self._programs.sizes):
            report(Progress("running bucket", done, len(self._programs.sizes)))
            for previous in ((), (tokens.start,)):  # prompts of both lengths
                silence = np.zeros((config.frames, config.bins), np.float32)
                window = SpeechWindow(silence, previous, None, None, 0.0, 0, 2, Event(), times)
                self.run([window] * size)

    def close(self) -> None:
        """Release weights and programs. Idempotent."""
        self._leaves = ()
        self._programs.close()
        self.closed = True

    def _timed(
        self, windows: Sequence[SpeechWindow], written: Sequence[WrittenWindow], cross: Any
    ) -> list[WrittenWindow]:
        """Add what the heads that follow the sound look at, for the windows that ask for times."""
        lines = [self._text(*each) for each in zip(windows, written, strict=True)]
        tokens = np.zeros((len(lines), self._programs.most_text), np.int32)
        for row, line in zip(tokens, lines, strict=True):
            row[: len(line)] = line
        # Of a window that asks for none, any will do.
        positions = np.asarray([max(each.times, 1) for each in windows], np.int32)
        looked = np.asarray(self._programs.align(self._leaves, cross, Texts(tokens, positions)))
        return [
            answer._replace(looked=each[:, : len(line), : window.times]) if window.times else answer
            for window, answer, line, each in zip(windows, written, lines, looked, strict=True)
        ]

    def _text(self, window: SpeechWindow, written: WrittenWindow) -> list[int]:
        """Return the tokens of an answer as the model was trained to give it without timestamps."""
        tokens = self._programs.tokens
        control = (tokens.start, window.language, window.task, tokens.no_timestamps)
        text = (token for token in written.tokens if token < tokens.end)
        return [*(each for each in control if each is not None), *text, tokens.end]

    def _mels(self, windows: Sequence[SpeechWindow]) -> np.ndarray:
        """f32[B, frames, bins]"""
        config = self._programs.recipe.config
        made = np.zeros((len(windows), config.frames, config.bins), np.float32)
        for row, window in zip(made, windows, strict=True):
            row[: len(window.mels)] = window.mels
        return made

    def _with_languages(self, windows: list[SpeechWindow], cross: Any) -> list[SpeechWindow]:
        """Fill in the language that is heard, where it is not known."""
        unknown = [each.language is None for each in windows]
        if not self._programs.tokens.languages or not any(unknown):
            return windows
        bare = [each._replace(previous=(), language=None, task=None) for each in windows]
        _, _, heard = self._read(bare, cross)
        languages = np.asarray(heard.language).tolist()
        return [
            each if each.language is not None else each._replace(language=language)
            for each, language in zip(windows, languages, strict=True)
        ]

    def _read(self, windows: Sequence[SpeechWindow], cross: Any) -> tuple[Any, SpeechRow, Heard]:
        return self._programs.read(self._leaves, cross, self._prompts(windows))

    def _prompts(self, windows: Sequence[SpeechWindow]) -> Prompts:
        lines = [self._prompt(each) for each in windows]
        width = next(n for n in self._programs.prompts if n >= max(map(len, lines)))
        tokens = np.zeros((len(lines), width), np.int32)
        for row, line in zip(tokens, lines, strict=True):
            row[: len(line)] = line
        lengths = [len(line) for line in lines]
        return Prompts(
            tokens=tokens,
            length=np.asarray(lengths, np.int32),
            start=np.asarray([self._start(line) for line in lines], np.int32),
            limit=np.asarray([self._limit(*each) for each in zip(windows, lengths, strict=True)]),
            temperature=np.asarray([each.temperature for each in windows], np.float32),
            seed=np.asarray([each.seed for each in windows], np.uint32),
        )

    def _prompt(self, window: SpeechWindow) -> list[int]:
        tokens = self._programs.tokens
        before = window.previous[-self._programs.most_previous :]
        control = (tokens.start, window.language, window.task)
        return [
            *((tokens.previous, *before) if before else ()),
            *(each for each in control if each is not None),
        ]

    def _start(self, line: Sequence[int]) -> int:
        """Return where the transcript starts; text before it holds no such token of its own."""
        return len(line) - 1 - [*reversed(line)].index(self._programs.tokens.start)

    def _limit(self, window: SpeechWindow, prompt: int) -> np.int32:
        context = self._programs.recipe.config.context
        return np.int32(max(1, min(window.limit, context // 2, context - prompt)))


def _written(windows: Sequence[SpeechWindow], row: SpeechRow, heard: Heard) -> list[WrittenWindow]:
    answers, counts = np.asarray(row.answer), np.asarray(row.count)
    logprobs, silences = np.asarray(row.logprob), np.asarray(heard.no_speech)
    return [
        WrittenWindow(
            tuple(answers[index, : counts[index]].tolist()),
            float(logprobs[index]),
            float(silences[index]),
            window.language,
        )
        for index, window in enumerate(windows)
    ]
