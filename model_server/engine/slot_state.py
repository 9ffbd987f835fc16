"""The device's memory of each slot: its last token, and the edits of its logits.

The edits of a sequence are written once, when it takes the slot, by a program of their own; from
then on a few numbers per row say which of them apply. Row `slots` is scratch: padding reads and
writes there. Steps skip all edits with `lax.cond` while no row asks for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from model_server.engine.limits import EngineLimits
from model_server.engine.slot_write import BAD_WORD_TOKENS, MOST_BAD_WORDS, MOST_BIASES, WriteLayout
from model_server.engine.types import ALLOWED, BAD_WORDS, BIASES, COUNTS, GUIDED
from model_server.kernels.row_sums import rounded

EngineParts = dict[str, tuple[int, tuple[int, ...]]]

_PROMPT, _GENERATED = 1, 2  # steps of `counts`
_MOST_COUNTED = 0xFFFF - _GENERATED  # counts saturate: u16 must not wrap


class SlotState(NamedTuple):
    """One row per slot, and the scratch row."""

    last_tokens: jax.Array  # i32[B + 1]
    counts: jax.Array  # u16[B + 1, V]: 1 if the token is in the prompt, plus 2 per generated one
    bias_tokens: jax.Array  # i32[B + 1, E]; V: none
    bias_values: jax.Array  # f32[B + 1, E], added to the token's logit
    bias_until: jax.Array  # i32[B + 1, E]: holds for tokens at positions before this one
    # u32[B + 1 + N, ceil(V / 32)]: a bit per token that may be chosen. N: the rows of a step that
    # may try draft tokens, which have masks of their own under a grammar.
    allowed: jax.Array
    bad_words: jax.Array  # i32[B + 1, W, L]: -1 on the left: any token; V at the end: none
    recent: jax.Array  # i32[B + 1, L - 1]: last tokens of the answer, the newest last; -1: none


class RowEdits(NamedTuple):
    """Edits of each row's logits before a token is chosen."""

    slot: jax.Array  # i32[R]
    position: jax.Array  # i32[R], of the token to choose
    draft: jax.Array  # i32[R], draft token that is the row's input; -1: none
    edits: jax.Array  # i32[R]: which parts of the slot's state apply
    presence_penalty: jax.Array  # f32[R], 0: off
    frequency_penalty: jax.Array  # f32[R], 0: off
    repetition_penalty: jax.Array  # f32[R], 1: off

    @property
    def drafts(self) -> RowDrafts:
        return RowDrafts(self.draft, self.slot, self.position)


def state_shapes(limits: EngineLimits, vocab: int, sharding: jax.sharding.Sharding) -> SlotState:
    """Return the shapes of the state of all slots, replicated over `sharding`."""
    columns: dict[str, tuple[Any, ...]] = {
        "last_tokens": (jnp.int32,),
        "counts": (jnp.uint16, vocab),
        "bias_tokens": (jnp.int32, MOST_BIASES),
        "bias_values": (jnp.float32, MOST_BIASES),
        "bias_until": (jnp.int32, MOST_BIASES),
        "allowed": (jnp.uint32, -(-vocab // 32)),
        "bad_words": (jnp.int32, MOST_BAD_WORDS, BAD_WORD_TOKENS),
        "recent": (jnp.int32, BAD_WORD_TOKENS - 1),
    }
    rows = {"allowed": limits.slots + 1 + limits.draft_rows}
    made: dict[str, Any] = {
        name: jax.ShapeDtypeStruct(
            (rows.get(name, limits.slots + 1), *sizes), dtype, sharding=sharding
        )
        for name, (dtype, *sizes) in columns.items()
    }
    return SlotState(**made)


def state_bytes(slots: int, draft_rows: int, vocab: int) -> int:
    """Bytes of the state on each device. draft_rows: as of `EngineLimits`."""
    words = 4 * (MOST_BAD_WORDS * BAD_WORD_TOKENS + BAD_WORD_TOKENS - 1)
    mask = 4 * -(-vocab // 32)
    return (slots + 1) * (4 + 2 * vocab + 12 * MOST_BIASES + mask + words) + draft_rows * mask


def unpack(parts: EngineParts, vector: jax.Array) -> dict[str, jax.Array]:
    """Cut a vector into its named parts; each has an offset and a shape."""
    made: dict[str, jax.Array] = {}
    for name, (offset, shape) in parts.items():
        part = lax.slice(vector, (offset,), (offset + math.prod(shape),))
        made[name] = part.reshape(shape)
    return made


def write_slot(state: SlotState, vector: jax.Array, context: int) -> SlotState:
    """Replace the edits of one slot with those of `slot_write.pack`; count its tokens anew."""
    vocab = state.counts.shape[1]
    parts = unpack(WriteLayout(context, vocab).parts, vector)
    slot, prompt, history = parts["slot"][0], parts["prompt"][0], parts["tokens"]
    places = jnp.arange(history.shape[0], dtype=jnp.int32)
    generated = jnp.where(places >= prompt, _GENERATED, 0).astype(jnp.uint16)
    counts = jnp.zeros(vocab, jnp.uint16).at[history].add(generated, mode="drop")
    seen = jnp.zeros(vocab, jnp.uint16)
    seen = seen.at[jnp.where(places < prompt, history, vocab)].set(_PROMPT, mode="drop")
    new = {
        "counts": counts | seen,
        "bias_tokens": parts["bias_tokens"],
        "bias_values": lax.bitcast_convert_type(parts["bias_values"], jnp.float32),
        "bias_until": parts["bias_until"],
        "allowed": lax.bitcast_convert_type(parts["allowed"], jnp.uint32),
        "bad_words": parts["bad_words"].reshape(MOST_BAD_WORDS, BAD_WORD_TOKENS),
        "recent": parts["recent"],
    }
    held = state._asdict()
    return state._replace(**{name: held[name].at[slot].set(row) for name, row in new.items()})


def write_masks(state: SlotState, masks: jax.Array) -> SlotState:
    """Replace the allowed tokens of slots; each row i32[1 + ceil(V / 32)] is a slot and its words.

    Rows that are not used name the scratch slot.
    """
    words = lax.bitcast_convert_type(masks[:, 1:], jnp.uint32)
    return state._replace(allowed=state.allowed.at[masks[:, 0]].set(words))


def note_tokens(state: SlotState, rows: RowEdits, tokens: jax.Array) -> SlotState:
    """Keep the tokens i32[R] that a step chose. A row without a slot has the scratch slot.

    Those behind a wrong draft token are dropped.
    """
    slot = rows.slot
    held = state.counts.at[slot, tokens].get(mode="promise_in_bounds").astype(jnp.int32)
    counting, newest = (rows.edits & COUNTS) > 0, slot
    if _tries(state):
        drafts, scratch = rows.drafts, state.last_tokens.shape[0] - 1
        taken = drafts.taken(tokens)
        held = held + _GENERATED * drafts.times(tokens, taken)
        counting &= taken
        newest = jnp.where(drafts.newest(taken), slot, scratch)
    step = jnp.where(counting & (held <= _MOST_COUNTED), _GENERATED, 0).astype(jnp.uint16)
    return state._replace(
        last_tokens=state.last_tokens.at[newest].set(tokens, mode="promise_in_bounds"),
        counts=state.counts.at[slot, tokens].add(step, mode="promise_in_bounds"),
        recent=_followed(state, rows, newest, tokens),
    )


def _tries(state: SlotState) -> bool:
    """True if steps may try draft tokens."""
    return state.allowed.shape[0] > state.last_tokens.shape[0]


def _followed(state: SlotState, rows: RowEdits, newest: jax.Array, tokens: jax.Array) -> jax.Array:
    """Return the last tokens of each slot's answer, further where bad words are looked for.

    newest: the slot of each row that is its last one, i32[R].
    """
    on = (rows.edits & BAD_WORDS) > 0

    def follow(recent: jax.Array) -> jax.Array:
        before = recent.at[rows.slot].get(mode="promise_in_bounds")
        moved = jnp.concatenate([_recent(state, rows)[:, 1:], tokens[:, None]], axis=1)
        return recent.at[newest].set(
            jnp.where(on[:, None], moved, before), mode="promise_in_bounds"
        )

    return lax.cond(jnp.any(on), follow, lambda recent: recent, state.recent)


def _recent(state: SlotState, rows: RowEdits) -> jax.Array:
    """Return the last tokens before the one that each row chooses, i32[R, L - 1]."""
    recent = state.recent.at[rows.slot].get(mode="promise_in_bounds")
    return rows.drafts.behind(recent) if _tries(state) else recent


def edit_logits(logits: jax.Array, state: SlotState, rows: RowEdits) -> jax.Array:
    """Return f32[R, V] with penalties, biases and forbidden tokens applied."""

    for kind, edit in _EDITS.items():
        on = (rows.edits & kind) > 0
        logits = lax.cond(jnp.any(on), edit, lambda logits, *_: logits, logits, state, rows, on)
    return logits


def _penalised(logits: jax.Array, state: SlotState, rows: RowEdits, on: jax.Array) -> jax.Array:
    """Repetition first, then frequency and presence, as OpenAI and vLLM define them."""
    counts = state.counts.at[rows.slot].get(mode="promise_in_bounds").astype(jnp.int32)
    if _tries(state):
        counts = rows.drafts.counted(counts, _GENERATED, 0xFFFF)
    counts = jnp.where(on[:, None], counts, 0)
    generated = (counts // _GENERATED).astype(jnp.float32)
    repetition = jnp.where(counts > 0, rows.repetition_penalty[:, None], 1.0)
    logits = jnp.where(logits > 0, logits / repetition, rounded(logits * repetition))
    logits = logits - rounded(rows.frequency_penalty[:, None] * generated)
    return logits - jnp.where(generated > 0, rows.presence_penalty[:, None], 0.0)


def _biased(logits: jax.Array, state: SlotState, rows: RowEdits, on: jax.Array) -> jax.Array:
    tokens = state.bias_tokens.at[rows.slot].get(mode="promise_in_bounds")
    values = state.bias_values.at[rows.slot].get(mode="promise_in_bounds")
    until = state.bias_until.at[rows.slot].get(mode="promise_in_bounds")
    holds = on[:, None] & (rows.position[:, None] < until)
    row = lax.broadcasted_iota(jnp.int32, tokens.shape, 0)
    tokens = jnp.where(holds, tokens, logits.shape[1])
    return logits.at[row, tokens].add(values, mode="drop")


def _restricted(logits: jax.Array, state: SlotState, rows: RowEdits, on: jax.Array) -> jax.Array:
    place = rows.slot
    if _tries(state):
        # Decodes are the first rows, so the number of each is that of its own mask.
        own = state.last_tokens.shape[0] + jnp.arange(place.shape[0], dtype=jnp.int32)
        place = jnp.where((rows.draft >= 0) & ((rows.edits & GUIDED) > 0), own, place)
    words = state.allowed.at[place].get(mode="promise_in_bounds")
    bits = (words[:, :, None] >> jnp.arange(32, dtype=jnp.uint32)[None, None, :]) & 1
    bits = bits.reshape(words.shape[0], -1)[:, : logits.shape[1]]
    return jnp.where((bits > 0) | ~on[:, None], logits, -jnp.inf)


def _barred(logits: jax.Array, state: SlotState, rows: RowEdits, on: jax.Array) -> jax.Array:
    """Forbid the last token of every bad word whose others are the answer's last tokens."""
    words = state.bad_words.at[rows.slot].get(mode="promise_in_bounds")  # i32[R, W, L]
    recent = _recent(state, rows)
    before, last = words[:, :, :-1], words[:, :, -1]
    met = on[:, None] & ((before < 0) | (before == recent[:, None, :])).all(-1)
    row = lax.broadcasted_iota(jnp.int32, last.shape, 0)
    return logits.at[row, jnp.where(met, last, logits.shape[1])].set(-jnp.inf, mode="drop")


Edit = Callable[[jax.Array, SlotState, RowEdits, jax.Array], jax.Array]
_EDITS: dict[int, Edit] = {
    COUNTS: _penalised,
    BIASES: _biased,
    ALLOWED: _restricted,
    BAD_WORDS: _barred,
}


class RowDrafts(NamedTuple):
    """Draft tokens of R rows, of which those of one slot follow each other.

    Penalties and bad words count the draft tokens before a row's place as if they had been chosen.
    Afterwards the slot keeps the tokens up to the first row whose draft token was wrong, so its
    state is what it would be without draft tokens.
    """

    token: jax.Array  # i32[R], the row's input if that is a draft token; -1: it is known
    slot: jax.Array  # i32[R]
    position: jax.Array  # i32[R], of the token to choose

    @property
    def there(self) -> jax.Array:
        """bool[R]: the rows that try one."""
        return self.token >= 0

    @property
    def before(self) -> jax.Array:
        """bool[R, R]: true at [r, q] if row q's draft token is before the token that r chooses."""
        ours = self.slot[:, None] == self.slot[None, :]
        return ours & self.there[None, :] & (self.position[None, :] <= self.position[:, None])

    def taken(self, chosen: jax.Array) -> jax.Array:
        """bool[R]: the rows whose draft token and all before it are right. chosen: i32[R]."""
        follows = (self.slot[:, None] == self.slot[None, :]) & (
            self.position[:, None] == self.position[None, :] + 1
        )
        right = (follows & (self.token[:, None] == chosen[None, :])).any(-1)
        wrong = self.there & ~right
        return ~(self.before & wrong[None, :]).any(-1)

    def newest(self, taken: jax.Array) -> jax.Array:
        """bool[R]: of the rows of a slot that are taken, the last one."""
        later = (self.slot[:, None] == self.slot[None, :]) & (
            self.position[None, :] > self.position[:, None]
        )
        return taken & ~(later & taken[None, :]).any(-1)

    def times(self, chosen: jax.Array, taken: jax.Array) -> jax.Array:
        """i32[R]: how often rows before it, which are taken, chose the token of a row."""
        ours = self.slot[:, None] == self.slot[None, :]
        earlier = self.position[None, :] < self.position[:, None]
        same = chosen[:, None] == chosen[None, :]
        return (ours & earlier & same & taken[None, :]).sum(-1, dtype=jnp.int32)

    def counted(self, counts: jax.Array, step: int, most: int) -> jax.Array:
        """Return counts i32[R, V] with `step` more for each draft token before; `most` at most."""
        row = lax.broadcasted_iota(jnp.int32, self.before.shape, 0)

        def add(counts: jax.Array) -> jax.Array:
            at = jnp.where(self.before, self.token[None, :], counts.shape[1])
            more = counts.at[row, at].add(step, mode="drop")
            # The last bits below a step are no count.
            return jnp.minimum(more, most // step * step + counts % step)

        return lax.cond(self.there.any(), add, lambda counts: counts, counts)

    def behind(self, recent: jax.Array) -> jax.Array:
        """Return the last tokens i32[R, M] of each row's answer, its draft tokens the newest."""
        size = recent.shape[1]
        moved = self.before.sum(-1, dtype=jnp.int32)[:, None]  # i32[R, 1]
        place = jnp.arange(size, dtype=jnp.int32)[None, :]
        held = jnp.take_along_axis(recent, jnp.minimum(place + moved, size - 1), axis=1)
        at = self.position[:, None] - (size - 1 - place)  # of the row that tries it, i32[R, M]
        tries = self.before[:, None, :] & (self.position[None, None, :] == at[:, :, None])
        drafted = jnp.where(tries, self.token[None, None, :], 0).sum(-1)
        return jnp.where(place + moved < size, held, drafted)
