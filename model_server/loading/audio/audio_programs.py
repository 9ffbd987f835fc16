"""The compiled programs of a model of sounds: encode windows, read a prompt, choose tokens.

Each is compiled for every number of windows before the first request; a compiled call cannot
compile again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from model_server.loading.batch_plan import code_and_most, compiled_all
from model_server.loading.loaded_model import Report
from model_server.models.audio import whisper
from model_server.models.audio.alignment import Heads
from model_server.models.audio.audio_recipe import AudioRecipe
from model_server.models.audio.speech_tokens import SpeechRow, SpeechTokens, advanced
from model_server.models.audio.whisper import WhisperCache
from model_server.models.audio.whisper_weights import Tree, heads_axis
from model_server.models.weights.sharding import Layout, bytes_per_device
from model_server.models.weights.weight import leaf_shapes

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


class Texts(NamedTuple):
    """Texts of a batch, to find where they are said."""

    tokens: Any  # i32[B, T]: control tokens, the text, the end
    positions: Any  # i32[B], of the encoder that hold sound


class Heard(NamedTuple):
    """Guesses from the start of a transcript."""

    no_speech: jax.Array  # f32[B], probability
    language: jax.Array  # i32[B], the likeliest one's token


class _ProgramKey(NamedTuple):
    kind: str  # encode, read, choose or align
    rows: int
    prompt: int = 0  # tokens


class AudioPrograms:
    """The compiled programs of one model."""

    def __init__(
        self, recipe: AudioRecipe, tokens: SpeechTokens, layout: Layout, heads: Heads = ()
    ) -> None:
        """layout: the recipe's, on devices. heads: those that follow the sound; (): none does."""
        self.recipe, self.tokens, self._layout, self.heads = recipe, tokens, layout, heads
        config = recipe.config
        self.sizes = layout.even(recipe.serving.batches)
        self._leaves = tuple(leaf_shapes(recipe.blueprint, layout))
        self._compiled: dict[_ProgramKey, Any] = {}
        # Half of the context is for text that came before, as in the paper.
        self.most_previous = config.context // 2 - 1
        self.prompts = (_CONTROL, 1 + self.most_previous + _CONTROL)
        self.most_text = _CONTROL + 1 + config.context // 2 + 1  # with no_timestamps and the end

    def compile(self, report: Report) -> None:
        kinds = [("encode", 0), *(("read", each) for each in self.prompts), ("choose", 0)]
        kinds += [("align", self.most_text)] if self.heads else []
        keys = [_ProgramKey(kind, size, prompt) for size in self.sizes for kind, prompt in kinds]
        self._compiled = compiled_all(keys, lambda key: self._lowered(key).compile(), report)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights on a device."""
        return self.recipe.blueprint.bytes_on(self._layout)

    @property
    def state_bytes(self) -> int:
        """Bytes on a device of keys and values of the largest batch."""
        rows = max(self.sizes)
        return _bytes(self._cross(rows)) + _bytes(self._cache(rows))

    @property
    def workspace(self) -> int:
        """Bytes of all programs' code, and of the largest temporaries and results."""
        return sum(code_and_most(self._compiled.values()))

    def encode(self, leaves: Sequence[jax.Array], mels: np.ndarray) -> WhisperCache:
        """Map spectrograms f32[B, frames, bins] to what the decoder reads of them."""
        return self._compiled[_ProgramKey("encode", len(mels))](leaves, mels)

    def read(
        self, leaves: Sequence[jax.Array], cross: WhisperCache, prompts: Prompts
    ) -> tuple[WhisperCache, SpeechRow, Heard]:
        """Read the prompts and choose the first token of each answer."""
        rows, prompt = prompts.tokens.shape
        return self._compiled[_ProgramKey("read", rows, prompt)](leaves, cross, prompts)

    def choose(
        self, leaves: Sequence[jax.Array], cross: WhisperCache, cache: WhisperCache, row: SpeechRow
    ) -> tuple[WhisperCache, SpeechRow]:
        """Choose up to STEPS more tokens of each answer; cache and rows are consumed."""
        return self._compiled[_ProgramKey("choose", len(row.token))](leaves, cross, cache, row)

    def align(self, leaves: Sequence[jax.Array], cross: WhisperCache, texts: Texts) -> jax.Array:
        """f32[B, A, T, S]: what each head that follows the sound looks at for each token."""
        return self._compiled[_ProgramKey("align", *texts.tokens.shape)](leaves, cross, texts)

    def close(self) -> None:
        self._compiled.clear()

    def _lowered(self, key: _ProgramKey) -> jax.stages.Lowered:
        config, cross, rows = self.recipe.config, self._cross(key.rows), self._layout.rows(key.rows)
        if key.kind == "encode":
            mels = self._shape((key.rows, config.frames, config.bins), jnp.float32)
            made = jax.jit(self._encode, out_shardings=cross[0].keys.sharding)
            return made.lower(self._leaves, mels)
        if key.kind == "align":
            texts = Texts(
                self._shape((key.rows, key.prompt), jnp.int32), self._shape((key.rows,), jnp.int32)
            )
            return jax.jit(self._align, out_shardings=rows).lower(self._leaves, cross, texts)
        cache = self._cache(key.rows)
        if key.kind == "read":
            shapes = self._prompts(key.rows, key.prompt)
            made = jax.jit(self._read, out_shardings=(cache[0].keys.sharding, rows, rows))
            return made.lower(self._leaves, cross, shapes)
        row = jax.eval_shape(self._begun, self._prompts(key.rows, _CONTROL))
        row = jax.tree.map(lambda each: self._shape(each.shape, each.dtype), row)
        made = jax.jit(
            self._choose, donate_argnums=(2, 3), out_shardings=(cache[0].keys.sharding, rows)
        )
        return made.lower(self._leaves, cross, cache, row)

    def _arrays(self, leaves: Sequence[jax.Array]) -> Tree:
        return self.recipe.blueprint.assemble(leaves).arrays()

    def _encode(self, leaves: Sequence[jax.Array], mels: jax.Array) -> WhisperCache:
        config, weights = self.recipe.config, self._arrays(leaves)
        states = whisper.encode(config, weights, mels, self._shards(len(mels)))
        return whisper.crossed(config, weights, states)

    def _align(self, leaves: Sequence[jax.Array], cross: WhisperCache, texts: Texts) -> jax.Array:
        config, weights = self.recipe.config, self._arrays(leaves)
        return whisper.alignment(config, weights, cross, *texts, self.heads)

    def _read(
        self, leaves: Sequence[jax.Array], cross: WhisperCache, prompts: Prompts
    ) -> tuple[WhisperCache, SpeechRow, Heard]:
        config, (rows, width) = self.recipe.config, prompts.tokens.shape
        weights = self._arrays(leaves)
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
        self, leaves: Sequence[jax.Array], cross: WhisperCache, cache: WhisperCache, row: SpeechRow
    ) -> tuple[WhisperCache, SpeechRow]:
        weights = self._arrays(leaves)

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
        return self._keys_and_values(rows, self.recipe.config.positions)

    def _cache(self, rows: int) -> WhisperCache:
        return self._keys_and_values(rows, self.recipe.config.context)

    def _keys_and_values(self, rows: int, length: int) -> WhisperCache:
        config, heads = self.recipe.config, self.recipe.config.heads[1]
        over = self._layout.axis(heads_axis(self._layout, heads))
        where = NamedSharding(
            self._layout.mesh, PartitionSpec(self._layout.rows(rows).spec[0], over)
        )
        pages = jax.eval_shape(lambda: whisper.empty_pages(config, self.recipe.dtype, rows, length))
        held = jax.tree.map(
            lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=where), pages
        )
        return (held,) * config.layers[1]

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

    def _shards(self, rows: int) -> int:
        """Return the number of parts that so many windows are divided into."""
        return rows // self._layout.rows(rows).shard_shape((rows,))[0]

    def _shape(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        """Return the shape of an array of windows."""
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self._layout.rows(shape[0]))


def _heard(tokens: SpeechTokens, logits: jax.Array) -> Heard:
    no_speech = jax.nn.softmax(logits)[:, tokens.no_speech]
    if not tokens.languages:
        return Heard(no_speech, jnp.zeros(len(logits), jnp.int32))
    languages = jnp.asarray([*tokens.languages.values()], jnp.int32)
    return Heard(no_speech, languages[jnp.argmax(logits[:, languages], -1)])


def _bytes(cache: Any) -> int:
    return sum(
        bytes_per_device(a.shape, 8 * a.dtype.itemsize, a.sharding) for a in jax.tree.leaves(cache)
    )
