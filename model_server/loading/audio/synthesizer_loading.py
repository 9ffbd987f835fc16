"""Loads a model that speaks: settings, compiled programs, memory plan, then weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.loading.audio.loaded_synthesizer import (
    LoadedSynthesizer,
    SpeechPiece,
    SpokenPiece,
    TooLong,
)
from model_server.loading.batch_plan import BatchPlan, code_and_most, compiled_all
from model_server.loading.kinds import AskedModel
from model_server.loading.load_context import LoadContext
from model_server.loading.loaded_batches import ONLY, Batching
from model_server.loading.loaded_model import Report
from model_server.loading.weights import mismatches, read_weights
from model_server.models.audio import vits
from model_server.models.audio.synthesizer_recipe import SynthesizerClass, SynthesizerRecipe
from model_server.models.audio.vits import ReadText
from model_server.models.audio.vits_tokenizer import read_vits_tokenizer
from model_server.models.overrides import apply_overrides
from model_server.models.registry import synthesizer_class
from model_server.models.weights.sharding import own_device
from model_server.models.weights.weight import leaf_shapes
from sax.errors import CheckpointError, InvalidRequest
from sax.memory_parts import MemoryParts
from sax.types import ModelSpec, Progress

_TOGETHER = 4  # pieces of a batch: the device reads one while it says another
_WAIT_S = 0.002


def plan(asked: AskedModel, context: LoadContext, report: Report) -> BatchPlan[LoadedSynthesizer]:
    """Compile the programs of a model that speaks. Raises CheckpointError, InvalidRequest."""
    spec, checkpoint = asked.spec, asked.checkpoint
    model = synthesizer_class(spec.model_path, asked.config)
    assert model is not None, "the kind was chosen by it"
    recipe = configured(model, spec, checkpoint)
    assert checkpoint is not None, "`configured` refuses None"
    needed, config = recipe.needed(checkpoint), recipe.config
    if found := next(mismatches(recipe.blueprint.declarations, needed), None):
        raise CheckpointError(found)
    tokenizer = read_vits_tokenizer(checkpoint.folder, config.vocab)
    programs = SynthesizerPrograms(recipe)
    programs.compile(report)
    return BatchPlan(
        context=context,
        spec=spec,
        layout=programs.layout,
        parts=MemoryParts(
            weights=recipe.blueprint.bytes_on(programs.layout),
            state=programs.state_bytes,
            workspace=programs.workspace,
        ),
        runner=lambda report: SynthesizerBatches(
            programs, read_weights(recipe.blueprint.declarations, needed, report)
        ),
        loaded=lambda **fields: LoadedSynthesizer(
            tokenizer=tokenizer,
            voices=recipe.voices,
            buckets=recipe.buckets,
            rate=config.rate,
            frame=config.frame,
            batching={ONLY: Batching(_TOGETHER, _WAIT_S, context.config.queue)},
            **fields,
        ),
    )


def configured(
    model: SynthesizerClass, spec: ModelSpec, checkpoint: Checkpoint | None
) -> SynthesizerRecipe:
    """Return the recipe of a publish. Raises InvalidRequest, CheckpointError."""
    if checkpoint is None:
        raise InvalidRequest(
            f"{model.path} takes its sizes from a checkpoint, not from None", param="checkpoint"
        )
    values = apply_overrides(model.overridable, spec.overrides, model.path)
    return model.configure(checkpoint.config, values)


class _SynthesisKey(NamedTuple):
    kind: str  # read or say
    size: int  # tokens or frames


class PieceInput(NamedTuple):
    """One piece of a text, as the programs take it."""

    tokens: Any  # i32[T]
    length: Any  # i32[]
    speaker: Any  # i32[]
    seed: Any  # u32[]
    index: Any  # u32[]
    speed: Any  # f32[]


class SynthesizerPrograms:
    """The compiled programs of one model: read a piece of each size, say one of each size.

    Each computes one piece. A batch of several would be one product of more rows, and rounding
    would depend on what else is in it: a token might last a frame more.
    """

    def __init__(self, recipe: SynthesizerRecipe) -> None:
        self.recipe = recipe
        self.buckets = recipe.buckets
        self.layout = own_device()
        self._leaves = tuple(leaf_shapes(recipe.blueprint, self.layout))
        self._compiled: dict[_SynthesisKey, Any] = {}

    def compile(self, report: Report) -> None:
        keys = [
            *(_SynthesisKey("read", size) for size in self.buckets.tokens),
            *(_SynthesisKey("say", size) for size in self.buckets.frames),
        ]
        self._compiled = compiled_all(keys, lambda key: self._lowered(key).compile(), report)

    @property
    def state_bytes(self) -> int:
        """Bytes of what is read and said at once, between the programs."""
        config = self.recipe.config
        read = 4 * self.buckets.tokens[-1] * (2 * config.channels + 1)
        return _TOGETHER * (read + 4 * self.buckets.frames[-1] * config.frame)

    @property
    def workspace(self) -> int:
        """Bytes of all programs' code, and of the largest temporaries and results."""
        return sum(code_and_most(self._compiled.values()))

    def read(self, leaves: Sequence[jax.Array], piece: PieceInput) -> ReadText:
        return self._compiled[_SynthesisKey("read", len(piece.tokens))](leaves, piece)

    def say(
        self, leaves: Sequence[jax.Array], text: ReadText, piece: PieceInput, frames: int
    ) -> jax.Array:
        """Return the samples of so many frames; the text's are the first of them."""
        key = _SynthesisKey("say", frames)
        return self._compiled[key](leaves, text, piece.speaker, piece.seed, piece.index)

    def close(self) -> None:
        self._compiled.clear()

    def _lowered(self, key: _SynthesisKey) -> jax.stages.Lowered:
        whole, seed = self._shape((), jnp.int32), self._shape((), jnp.uint32)
        if key.kind == "read":
            tokens, speed = self._shape((key.size,), jnp.int32), self._shape((), jnp.float32)
            piece = PieceInput(tokens, whole, whole, seed, seed, speed)
            return jax.jit(self._read).lower(self._leaves, piece)
        count, channels = self.buckets.tokens[-1], self.recipe.config.channels
        stats: Any = self._shape((count, channels), jnp.float32)
        lasting: Any = self._shape((count,), jnp.int32)
        text = ReadText(stats, stats, lasting, whole)

        def say(leaves: Sequence[jax.Array], text: ReadText, *piece: jax.Array) -> jax.Array:
            return self._say(leaves, text, key.size, *piece)

        return jax.jit(say).lower(self._leaves, text, whole, seed, seed)

    def _read(self, leaves: Sequence[jax.Array], piece: PieceInput) -> ReadText:
        noise = drawn(piece.seed, piece.index, 0, (len(piece.tokens), 2))
        made = vits.read_text(
            self.recipe.config,
            self.recipe.blueprint.assemble(leaves).arrays(),
            piece.tokens,
            piece.length,
            piece.speaker,
            noise,
            piece.speed,
            self.buckets.frames[-1],
        )
        # One size for every program that says it: no token behind the text lasts.
        behind = ((0, self.buckets.tokens[-1] - len(piece.tokens)), (0, 0))
        return ReadText(
            jnp.pad(made.means, behind),
            jnp.pad(made.log_deviations, behind),
            jnp.pad(made.frames, behind[0]),
            made.total,
        )

    def _say(
        self,
        leaves: Sequence[jax.Array],
        text: ReadText,
        frames: int,
        speaker: jax.Array,
        seed: jax.Array,
        index: jax.Array,
    ) -> jax.Array:
        config = self.recipe.config
        noise = drawn(seed, index, 1, (frames, config.channels))
        weights = self.recipe.blueprint.assemble(leaves).arrays()
        return vits.spoken(config, weights, text, speaker, noise)

    def _shape(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)


def drawn(seed: jax.Array, index: jax.Array, use: int, shape: tuple[int, int]) -> jax.Array:
    """Draw f32[N, W] from the standard normal distribution, row by row by its number: more rows
    change none of those before them. use: what the numbers are for."""
    key = jax.random.key(0)
    for part in (seed, index, use):
        key = jax.random.fold_in(key, part)
    count, width = shape

    def row(at: jax.Array) -> jax.Array:
        return jax.random.normal(jax.random.fold_in(key, at), (width,))

    return jax.vmap(row)(jnp.arange(count))


class SynthesizerBatches:
    """Programs and weights of a model that speaks. Not thread-safe: one thread calls it."""

    def __init__(self, programs: SynthesizerPrograms, leaves: Sequence[jax.Array]) -> None:
        self._programs = programs
        self._leaves = tuple(leaves)
        self.closed = False

    def group(self, piece: SpeechPiece) -> None:
        """All pieces may share a batch."""

    def run(self, pieces: Sequence[SpeechPiece]) -> list[SpokenPiece | TooLong]:
        """Return the sound of each piece; the device reads all before it says the first."""
        inputs = [self._input(each) for each in pieces]
        texts = [self._programs.read(self._leaves, each) for each in inputs]
        totals = [int(np.asarray(each.total)) for each in texts]
        sounds = [
            self._said(text, each, total)
            for text, each, total in zip(texts, inputs, totals, strict=True)
        ]
        frame = self._programs.recipe.config.frame
        return [
            TooLong() if sound is None else SpokenPiece(np.asarray(sound)[: total * frame], total)
            for sound, total in zip(sounds, totals, strict=True)
        ]

    def warm(self, report: Report) -> None:
        """Run every program once, so that no request pays for a first run."""
        buckets = self._programs.buckets
        total = len(buckets.tokens) + len(buckets.frames)
        piece = SpeechPiece((0,), 0, 1.0, 0, 0)
        texts = [
            self._programs.read(self._leaves, self._input(piece, size)) for size in buckets.tokens
        ]
        for done, size in enumerate(buckets.frames, len(texts)):
            report(Progress("running bucket", done, total))
            made = self._programs.say(self._leaves, texts[0], self._input(piece), size)
            jax.block_until_ready(made)

    def close(self) -> None:
        """Release weights and programs. Idempotent."""
        self._leaves = ()
        self._programs.close()
        self.closed = True

    def _input(self, piece: SpeechPiece, size: int = 0) -> PieceInput:
        """size: tokens with padding; 0: the least that is compiled."""
        size = size or next(
            each for each in self._programs.buckets.tokens if each >= len(piece.tokens)
        )
        tokens = np.zeros(size, np.int32)
        tokens[: len(piece.tokens)] = piece.tokens
        return PieceInput(
            tokens=tokens,
            length=np.int32(len(piece.tokens)),
            speaker=np.int32(piece.speaker),
            seed=np.uint32(piece.seed),
            index=np.uint32(piece.index),
            speed=np.float32(piece.speed * self._programs.recipe.config.speed),
        )

    def _said(self, text: ReadText, piece: PieceInput, total: int) -> jax.Array | None:
        """Return the samples of a text's frames and some more; None: it is too long."""
        frames = next((each for each in self._programs.buckets.frames if each >= total), None)
        return None if frames is None else self._programs.say(self._leaves, text, piece, frames)
