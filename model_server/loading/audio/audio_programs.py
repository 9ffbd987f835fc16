"""The compiled programs of a model of sounds: encode windows, read a prompt, choose tokens.

Each is compiled for every number of windows before the first request; a compiled call cannot
compile again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from model_server.engine.compiling import compiled_in_turn
from model_server.engine.step_program import everywhere
from model_server.models.audio import whisper
from model_server.models.audio.audio_recipe import AudioRecipe
from model_server.models.audio.speech_rules import SpeechRow, advanced
from model_server.models.audio.speech_tokens import SpeechTokens
from model_server.models.audio.whisper import WhisperCache
from model_server.models.weights.sharding import own_device
from model_server.models.weights.weight import leaf_shapes
from sax.types import Progress

Report = Callable[[Progress], None]

STEPS = 24  # tokens between two looks of the host at who is done and who is gone
_CONTROL = 3  # start, language, task


class Prompts(NamedTuple):
    """Prompts of a batch."""

    tokens: Any  # i32[B, P], each from the left
    length: Any  # i32[B]
    start: Any  # i32[B], where the token is that starts the transcript
    limit: Any  # i32[B], most tokens of the answer
    temperature: Any  # f32[B]
    seed: Any  # u32[B]


class Heard(NamedTuple):
    """Guesses from the start of a transcript."""

    no_speech: jax.Array  # f32[B], probability
    language: jax.Array  # i32[B], the likeliest one's token


class _ProgramKey(NamedTuple):
    kind: str  # encode, read or choose
    rows: int
    prompt: int = 0  # tokens


class AudioPrograms:
    """The compiled programs of one model, and what prepares its weights."""

    def __init__(self, recipe: AudioRecipe, tokens: SpeechTokens) -> None:
        self.recipe, self.tokens = recipe, tokens
        config = recipe.config
        self._leaves = leaf_shapes(recipe.blueprint, own_device())
        self._where = everywhere(self._leaves[0].sharding)
        made = jax.jit(self._prepared, out_shardings=self._where).lower(self._leaves)
        self._weights = self._placed(made.out_info)
        self._prepare = made.compile()
        self._compiled: dict[_ProgramKey, Any] = {}
        # Half of the context is for text that came before, as in the paper.
        self.most_previous = config.context // 2 - 1
        self.prompts = (_CONTROL, 1 + self.most_previous + _CONTROL)

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.recipe.serving.batches

    def compile(self, report: Report) -> None:
        kinds = [("encode", 0), *(("read", each) for each in self.prompts), ("choose", 0)]
        keys = [_ProgramKey(kind, size, prompt) for size in self.sizes for kind, prompt in kinds]
        report(Progress("compiling bucket", 0, len(keys)))
        with closing(compiled_in_turn(keys, lambda key: self._lowered(key).compile())) as made:
            for done, (key, program) in enumerate(made, 1):
                self._compiled[key] = program
                report(Progress("compiling bucket", done, len(keys)))

    @property
    def weight_bytes(self) -> int:
        """Bytes of the prepared weights."""
        return _bytes(self._weights)

    @property
    def state_bytes(self) -> int:
        """Bytes of keys and values of the largest batch."""
        rows = max(self.sizes)
        return _bytes(self._cross(rows)) + _bytes(self._cache(rows))

    @property
    def workspace(self) -> int:
        """Bytes of all programs' code, and of the largest temporaries and results, or of the
        weights as they are read: both are there until they are prepared.
        """
        stats = [each for one in self._compiled.values() if (each := one.memory_analysis())]
        code = sum(each.generated_code_size_in_bytes for each in stats)
        used = (each.temp_size_in_bytes + each.output_size_in_bytes for each in stats)
        return code + max(self.recipe.blueprint.bytes, *used)

    def prepare(self, leaves: Sequence[jax.Array]) -> Any:
        """Return the weights as programs take them; the given ones are needed no longer."""
        return jax.block_until_ready(self._prepare(list(leaves)))

    def encode(self, weights: Any, mels: np.ndarray) -> WhisperCache:
        """Map spectrograms f32[B, frames, bins] to what the decoder reads of them."""
        return self._compiled[_ProgramKey("encode", len(mels))](weights, mels)

    def read(
        self, weights: Any, cross: WhisperCache, prompts: Prompts
    ) -> tuple[WhisperCache, SpeechRow, Heard]:
        """Read the prompts and choose the first token of each answer."""
        rows, prompt = prompts.tokens.shape
        return self._compiled[_ProgramKey("read", rows, prompt)](weights, cross, prompts)

    def choose(
        self, weights: Any, cross: WhisperCache, cache: WhisperCache, row: SpeechRow
    ) -> tuple[WhisperCache, SpeechRow]:
        """Choose up to STEPS more tokens of each answer; cache and rows are consumed."""
        return self._compiled[_ProgramKey("choose", len(row.token))](weights, cross, cache, row)

    def close(self) -> None:
        self._compiled.clear()

    def _prepared(self, leaves: list[jax.Array]) -> Any:
        return self.recipe.blueprint.assemble(leaves).prepared()

    def _lowered(self, key: _ProgramKey) -> jax.stages.Lowered:
        config, cross = self.recipe.config, self._cross(key.rows)
        if key.kind == "encode":
            mels = self._shape((key.rows, config.frames, config.bins), jnp.float32)
            return jax.jit(partial(_encode, config)).lower(self._weights, mels)
        if key.kind == "read":
            shapes = self._prompts(key.rows, key.prompt)
            return jax.jit(self._read).lower(self._weights, cross, shapes)
        prompts = self._prompts(key.rows, _CONTROL)
        cache, row, _ = jax.eval_shape(self._read, self._weights, cross, prompts)
        given = self._weights, cross, self._placed(cache), self._placed(row)
        return jax.jit(self._choose, donate_argnums=(2, 3)).lower(*given)

    def _read(self, weights: Any, cross: WhisperCache, prompts: Prompts) -> Any:
        config, (rows, width) = self.recipe.config, prompts.tokens.shape
        cache = whisper.empty_cache(config, self.recipe.dtype, rows)
        positions = jnp.broadcast_to(jnp.arange(width), (rows, width))
        x, cache = whisper.decode(config, weights, cross, cache, prompts.tokens, positions)
        ends = jnp.stack([prompts.start, prompts.length - 1], 1)[:, :, None]
        logits = whisper.logits(weights, jnp.take_along_axis(x, ends, 1))
        row = advanced(self.tokens, self._begun(prompts), logits[:, 1])
        return cache, row, _heard(self.tokens, logits[:, 0])

    def _begun(self, prompts: Prompts) -> SpeechRow:
        rows = len(prompts.length)
        whole, none = jnp.zeros(rows, jnp.int32), jnp.zeros(rows, bool)
        return SpeechRow(
            token=whole,
            position=prompts.length,
            count=whole,
            limit=prompts.limit,
            done=none,
            logprob=jnp.zeros(rows, jnp.float32),
            was_time=none,
            was_time_before=~none,
            time=whole,
            temperature=prompts.temperature,
            seed=prompts.seed,
            answer=jnp.zeros((rows, self.recipe.config.context // 2), jnp.int32),
        )

    def _choose(
        self, weights: Any, cross: WhisperCache, cache: WhisperCache, row: SpeechRow
    ) -> Any:
        def going(carry: Any) -> jax.Array:
            step, _, row = carry
            return (step < STEPS) & ~jnp.all(row.done)

        def chosen(carry: Any) -> Any:
            step, cache, row = carry
            x, cache = whisper.decode(
                self.recipe.config,
                weights,
                cross,
                cache,
                row.token[:, None],
                row.position[:, None],
            )
            position = jnp.where(row.done, row.position, row.position + 1)
            row = advanced(self.tokens, row, whisper.logits(weights, x[:, 0]))
            return step + 1, cache, row._replace(position=position)

        _, cache, row = lax.while_loop(going, chosen, (0, cache, row))
        return cache, row

    def _cross(self, rows: int) -> WhisperCache:
        config = self.recipe.config
        head = config.embed // config.heads[1]
        shape = (config.layers[1], rows, config.positions, config.heads[1], head)
        both: Any = self._shape(shape, self.recipe.dtype)
        return WhisperCache(both, both)

    def _cache(self, rows: int) -> Any:
        empty = partial(whisper.empty_cache, self.recipe.config, self.recipe.dtype, rows)
        return self._placed(jax.eval_shape(empty))

    def _prompts(self, rows: int, width: int) -> Prompts:
        whole = self._shape((rows,), jnp.int32)
        return Prompts(
            tokens=self._shape((rows, width), jnp.int32),
            length=whole,
            start=whole,
            limit=whole,
            temperature=self._shape((rows,), jnp.float32),
            seed=self._shape((rows,), jnp.uint32),
        )

    def _placed(self, shapes: Any) -> Any:
        return jax.tree.map(lambda each: self._shape(each.shape, each.dtype), shapes)

    def _shape(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self._where)


def _encode(config: Any, weights: Any, mels: jax.Array) -> WhisperCache:
    return whisper.crossed(config, weights, whisper.encode(config, weights, mels))


def _heard(tokens: SpeechTokens, logits: jax.Array) -> Heard:
    no_speech = jax.nn.softmax(logits)[:, tokens.no_speech]
    if not tokens.languages:
        return Heard(no_speech, jnp.zeros(len(logits), jnp.int32))
    languages = jnp.asarray([*tokens.languages.values()], jnp.int32)
    return Heard(no_speech, languages[jnp.argmax(logits[:, languages], -1)])


def _bytes(shapes: Any) -> int:
    return sum(math.prod(each.shape) * each.dtype.itemsize for each in jax.tree.leaves(shapes))
