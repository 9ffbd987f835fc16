"""Control tokens of a Whisper checkpoint, and the rules for the next token of a transcript."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.models.audio.whisper_config import WhisperConfig
from sax.errors import CheckpointError

_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
_MULTILINGUAL_VOCAB = 51865  # the smallest of a published multilingual model
_INITIAL = 50  # 20 ms each: speech begins within a second


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechTokens:
    start: int  # of a transcript
    end: int
    previous: int  # before text that came before
    no_speech: int
    no_timestamps: int
    languages: Mapping[str, int]  # by code; empty: English only
    tasks: Mapping[str, int]  # transcribe and translate; empty: transcribe only
    suppressed: tuple[int, ...]  # anywhere
    suppressed_first: tuple[int, ...]
    most_initial: int  # the latest first timestamp, in 20 ms

    @property
    def timestamps(self) -> int:
        """The token of 0.00 s; each after it is 20 ms later."""
        return self.no_timestamps + 1


def read_speech_tokens(checkpoint: Checkpoint, config: WhisperConfig) -> SpeechTokens:
    """Read generation_config.json and the tokenizer. Raises CheckpointError for a missing token."""
    tokenizer, said = checkpoint.tokenizer(), checkpoint.generation_config
    found = {tokenizer.token_text(each): each for each in tokenizer.control_ids}
    multilingual = said.get("is_multilingual", config.vocab >= _MULTILINGUAL_VOCAB)
    codes = {match[1]: each for text, each in found.items() if (match := _LANGUAGE.fullmatch(text))}
    tasks = {name: found[f"<|{name}|>"] for name in _TASKS if f"<|{name}|>" in found}
    made = SpeechTokens(
        start=_found(found, "<|startoftranscript|>"),
        end=_found(found, "<|endoftext|>"),
        previous=_found(found, "<|startofprev|>"),
        no_speech=_found(found, "<|nospeech|>", "<|nocaptions|>"),
        no_timestamps=_found(found, "<|notimestamps|>"),
        languages=codes if multilingual else {},
        tasks=tasks if multilingual else {},
        suppressed=_ids(said, "suppress_tokens", config.vocab),
        suppressed_first=_ids(said, "begin_suppress_tokens", config.vocab),
        most_initial=_initial(said),
    )
    _check(made, said, config)
    return made


_TASKS = ("transcribe", "translate")


def _found(tokens: Mapping[str, int], *names: str) -> int:
    for name in names:
        if name in tokens:
            return tokens[name]
    raise CheckpointError(
        f"the tokenizer has no token {' or '.join(names)}: a Whisper checkpoint needs the "
        "tokenizer.json that it was published with"
    )


def _ids(said: Mapping[str, Any], key: str, vocab: int) -> tuple[int, ...]:
    given = said.get(key)
    if given is None:
        return ()
    if not isinstance(given, Sequence) or not all(
        type(each) is int and 0 <= each < vocab for each in given
    ):
        raise CheckpointError(
            f"generation_config.json has {key} = {given!r}; give ids of the {vocab} tokens"
        )
    return tuple(given)


def _initial(said: Mapping[str, Any]) -> int:
    given = said.get("max_initial_timestamp_index", _INITIAL)
    if type(given) is not int or given < 0:
        raise CheckpointError(
            f"generation_config.json has max_initial_timestamp_index = {given!r}; give a whole "
            "number"
        )
    return given


def _check(made: SpeechTokens, said: Mapping[str, Any], config: WhisperConfig) -> None:
    given = said.get("no_timestamps_token_id", made.no_timestamps)
    if given != made.no_timestamps:
        raise CheckpointError(
            f"generation_config.json has no_timestamps_token_id = {given!r} and the tokenizer "
            f"<|notimestamps|> = {made.no_timestamps}: the two files are of different models"
        )
    if made.timestamps + config.positions >= config.vocab:
        raise CheckpointError(
            f"config.json has vocab_size = {config.vocab}, which leaves no tokens for the "
            f"{config.positions + 1} timestamps after {made.no_timestamps}"
        )


# --- The choice of the next token by the rules for timestamps. Pure, on the device.
#
# The rules are those of section 3.8 of arXiv:2212.04356: timestamps come in pairs, except the first
# and the last, never go back, and stand wherever they are together likelier than every word.


class SpeechRow(NamedTuple):
    """State of every transcript of a batch."""

    token: jax.Array  # i32[B], the last one
    position: jax.Array  # i32[B], of the next token that is read
    count: jax.Array  # i32[B], tokens of the answer
    limit: jax.Array  # i32[B], most tokens of the answer
    done: jax.Array  # bool[B]
    logprob: jax.Array  # f32[B], of the answer and its end
    was_time: jax.Array  # bool[B], the last token is a timestamp
    was_time_before: jax.Array  # bool[B], the one before it, too; True: there is none
    time: jax.Array  # i32[B], the last timestamp; 0: none yet
    temperature: jax.Array  # f32[B]
    seed: jax.Array  # u32[B]
    answer: jax.Array  # i32[B, N]


def allowed(tokens: SpeechTokens, row: SpeechRow, logits: jax.Array) -> jax.Array:
    """Return logits f32[B, V] with every token that may not come next at minus infinity."""
    ids = jnp.arange(logits.shape[-1])
    times, first = ids >= tokens.timestamps, (row.count == 0)[:, None]
    never = jnp.zeros(ids.shape, bool).at[jnp.asarray(_never(tokens))].set(True)
    barred = never | (first & _mask(ids, tokens.suppressed_first))
    barred |= first & (~times | (ids > tokens.timestamps + tokens.most_initial))
    last, before = row.was_time[:, None], row.was_time_before[:, None]
    barred |= last & before & times
    barred |= last & ~before & (ids < tokens.end)
    earliest = row.time + jnp.where(row.was_time & ~row.was_time_before, 0, 1)
    barred |= (row.time > 0)[:, None] & times & (ids < earliest[:, None])
    logits = jnp.where(barred, -jnp.inf, logits)
    together = jax.nn.logsumexp(jnp.where(times, logits, -jnp.inf), -1)
    word = jnp.max(jnp.where(times, -jnp.inf, logits), -1)
    return jnp.where((together > word)[:, None] & ~times, -jnp.inf, logits)


def _never(tokens: SpeechTokens) -> tuple[int, ...]:
    return (*tokens.suppressed, tokens.no_timestamps)


def _mask(ids: jax.Array, chosen: tuple[int, ...]) -> jax.Array:
    return jnp.isin(ids, jnp.asarray(chosen, jnp.int32)) if chosen else jnp.zeros(ids.shape, bool)


def advanced(tokens: SpeechTokens, row: SpeechRow, logits: jax.Array) -> SpeechRow:
    """Choose the next token of each row that is not done."""
    logits = allowed(tokens, row, logits)
    chosen = _sampled(row, logits)
    gained = jnp.take_along_axis(jax.nn.log_softmax(logits), chosen[:, None], -1)[:, 0]
    ends, going = chosen == tokens.end, ~row.done
    kept = going & ~ends
    is_time = chosen >= tokens.timestamps
    rows = jnp.arange(len(chosen))
    slot = jnp.where(kept, row.count, row.answer.shape[1])  # past the end: not written
    count = row.count + kept
    return row._replace(
        token=jnp.where(kept, chosen, row.token),
        count=count,
        done=row.done | ends | (count >= row.limit),
        logprob=row.logprob + jnp.where(going, gained, 0.0),
        was_time=jnp.where(kept, is_time, row.was_time),
        was_time_before=jnp.where(kept, (row.count == 0) | row.was_time, row.was_time_before),
        time=jnp.where(kept & is_time, chosen, row.time),
        answer=row.answer.at[rows, slot].set(chosen, mode="drop"),
    )


def _sampled(row: SpeechRow, logits: jax.Array) -> jax.Array:
    """Return i32[B]: the likeliest token, or one drawn at the row's temperature."""

    def noise(seed: jax.Array, count: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), seed), count)
        return jax.random.gumbel(key, logits.shape[-1:])

    warm = row.temperature > 0
    scaled = logits / jnp.where(warm, row.temperature, 1.0)[:, None]
    drawn = scaled + jax.vmap(noise)(row.seed, row.count)
    return jnp.argmax(jnp.where(warm[:, None], drawn, logits), -1).astype(jnp.int32)
