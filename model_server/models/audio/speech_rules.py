"""Chooses the next token of a transcript by the rules for timestamps. Pure, on the device.

The rules are those of section 3.8 of arXiv:2212.04356: timestamps come in pairs, except the first
and the last, never go back, and stand wherever they are together likelier than every word.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from model_server.models.audio.speech_tokens import SpeechTokens


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
