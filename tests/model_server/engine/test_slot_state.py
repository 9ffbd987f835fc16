"""Edits of logits against definitions written out in numpy, and the state that they read."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from model_server.engine.limits import EngineLimits
from model_server.engine.slot_state import (
    RowEdits,
    SlotState,
    edit_logits,
    note_tokens,
    state_bytes,
    state_shapes,
    write_masks,
    write_slot,
)
from model_server.engine.slot_write import MOST_BIASES, check_biases, pack
from model_server.engine.types import ALLOWED, BAD_WORDS, BIASES, COUNTS, Sampling, SlotSampling
from sax.errors import InvalidRequest

VOCAB = 70  # not whole words of 32 bits
LIMITS = EngineLimits(
    slots=3, pages=8, page_size=4, max_context=24, token_budget=16, max_logit_rows=4
)
DRAFTING = replace(LIMITS, draft_tokens=5, max_decodes=8)
tokens_ = st.lists(st.integers(0, VOCAB - 1), max_size=12)


def empty(limits: EngineLimits = LIMITS) -> SlotState:
    where = jnp.zeros(1).sharding
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), state_shapes(limits, VOCAB, where))


def asked(**changes: Any) -> Sampling:
    return Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0, **changes)


@functools.cache
def _write() -> Any:
    return jax.jit(functools.partial(write_slot, context=LIMITS.max_context))


def written(state: SlotState, slot: int, sampling: Sampling, *texts: list[int]) -> SlotState:
    """The state once a sequence of a prompt and an answer has the slot."""
    prompt, answer = (*texts, [], [])[:2]
    change = SlotSampling(slot, sampling, (*prompt, *answer), len(prompt))
    return _write()(state, jnp.asarray(pack(change, LIMITS, VOCAB)))


def rows(samplings: list[tuple[int, int, Sampling]], drafts: Sequence[int] = ()) -> RowEdits:
    """One row for each slot, position and sampling. drafts: of the rows, -1 for none."""
    slots, positions, asked_ = zip(*samplings, strict=True)
    return RowEdits(
        slot=jnp.asarray(slots, jnp.int32),
        position=jnp.asarray(positions, jnp.int32),
        draft=jnp.asarray(drafts or [-1] * len(slots), jnp.int32),
        edits=jnp.asarray([one.edits for one in asked_], jnp.int32),
        presence_penalty=jnp.asarray([one.presence_penalty for one in asked_], jnp.float32),
        frequency_penalty=jnp.asarray([one.frequency_penalty for one in asked_], jnp.float32),
        repetition_penalty=jnp.asarray([one.repetition_penalty for one in asked_], jnp.float32),
    )


def logits(count: int) -> np.ndarray:
    return np.random.default_rng(count).normal(size=(count, VOCAB)).astype(np.float32) * 3


def test_each_kind_of_edit_is_asked_for_by_its_own_bit() -> None:
    assert asked().edits == 0
    assert asked(presence_penalty=-0.5).edits == COUNTS
    assert asked(repetition_penalty=1.3).edits == COUNTS
    assert asked(logit_bias=((1, 2.0),)).edits == BIASES
    assert asked(min_tokens=3).edits == 0  # nothing would end the answer sooner
    assert asked(min_tokens=3, ends=(1,)).edits == BIASES
    assert asked(allowed=()).edits == ALLOWED
    assert asked(bad_words=((1, 2),)).edits == BAD_WORDS


@given(prompt=tokens_, answer=tokens_, penalties=st.tuples(*[st.floats(-2, 2)] * 2))
def test_penalties_are_openais_and_the_repetition_penalty_is_that_of_ctrl(
    prompt: list[int], answer: list[int], penalties: tuple[float, float]
) -> None:
    presence, frequency = penalties
    sampling = asked(presence_penalty=presence, frequency_penalty=frequency, repetition_penalty=1.5)
    state = written(empty(), 1, sampling, prompt, answer)
    values = logits(1)
    wanted = values[0].copy()
    for token in {*prompt, *answer}:
        wanted[token] = wanted[token] / 1.5 if wanted[token] > 0 else wanted[token] * 1.5
    for token in set(answer):
        wanted[token] -= presence + frequency * answer.count(token)
    _, edit = _jitted()
    got = edit(jnp.asarray(values), state, rows([(1, 20, sampling)]))
    np.testing.assert_allclose(got[0], wanted, rtol=1e-5, atol=1e-5)


def test_tokens_that_a_step_chooses_are_counted() -> None:
    sampling = asked(frequency_penalty=1.0)
    state = written(empty(), 2, sampling, [5, 6])
    for token in (7, 7, 5):
        row = rows([(2, 9, sampling)])
        state = note_tokens(state, row, jnp.asarray([token], jnp.int32))
    got = edit_logits(jnp.zeros((1, VOCAB)), state, rows([(2, 9, sampling)]))
    assert {t: float(v) for t, v in enumerate(got[0]) if v} == {7: -2.0, 5: -1.0}
    assert int(state.last_tokens[2]) == 5


def test_counts_stop_at_their_largest_number() -> None:
    sampling = asked(frequency_penalty=1.0)
    state = written(empty(), 0, sampling, [4])
    state = state._replace(counts=state.counts.at[0, 4].set(0xFFFF - 2))
    row = rows([(0, 9, sampling)])
    for _ in range(3):
        state = note_tokens(state, row, jnp.asarray([4], jnp.int32))
    assert int(state.counts[0, 4]) == 0xFFFF


def test_a_bias_is_added_and_ends_are_held_back_until_the_answer_is_long_enough() -> None:
    sampling = asked(logit_bias=((3, 2.5), (69, -100.0)), min_tokens=2, ends=(8, 9))
    state = written(empty(), 0, sampling, [1] * 10)
    values = logits(2)
    early, late = edit_logits(
        jnp.asarray(values), state, rows([(0, 11, sampling), (0, 12, sampling)])
    )
    wanted = values.copy()
    wanted[:, 3] += 2.5
    wanted[:, 69] -= 100.0
    np.testing.assert_allclose(late, wanted[1], rtol=1e-6)
    wanted[0, [8, 9]] = -np.inf
    np.testing.assert_allclose(early, wanted[0], rtol=1e-6)


def test_only_allowed_tokens_keep_their_logits() -> None:
    values = logits(1)
    for allowed in ((), (0,), (31, 32, 69), tuple(range(VOCAB))):
        sampling = asked(allowed=allowed)
        state = written(empty(), 1, sampling, [1])
        got = np.asarray(edit_logits(jnp.asarray(values), state, rows([(1, 5, sampling)])))[0]
        assert np.flatnonzero(np.isfinite(got)).tolist() == list(allowed)
        np.testing.assert_array_equal(got[list(allowed)], values[0, list(allowed)])


words_ = st.lists(
    st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), min_size=1, max_size=5
).map(tuple)


@functools.cache
def _jitted() -> tuple[Any, Any]:
    return jax.jit(note_tokens), jax.jit(edit_logits)


@settings(max_examples=25)
@given(words=words_, told=st.integers(0, 12), answer=st.lists(st.integers(0, 3), max_size=12))
def test_the_last_token_of_a_bad_word_is_barred_where_the_answer_ends_with_the_others(
    words: tuple[tuple[int, ...], ...], told: int, answer: list[int]
) -> None:
    sampling = asked(bad_words=words)
    state = written(empty(), 1, sampling, [0, 1, 2, 3] * 2, answer[:told])
    note, edit = _jitted()
    for token in answer[told:]:
        state = note(state, rows([(1, 9, sampling)]), jnp.asarray([token], jnp.int32))
    got = edit(jnp.zeros((2, VOCAB)), state, rows([(1, 9, sampling), (0, 9, asked())]))
    ends = {(*answer[len(answer) - count :],) for count in range(len(answer) + 1)}
    barred = {word[-1] for word in words if word[:-1] in ends}
    assert set(np.flatnonzero(np.isinf(got[0])).tolist()) == barred
    assert not np.isinf(got[1]).any()


def test_rows_are_edited_as_if_each_were_alone() -> None:
    samplings = [
        asked(),
        asked(presence_penalty=1.0, repetition_penalty=2.0),
        asked(logit_bias=((4, 9.0),), allowed=(4, 5), bad_words=((3, 4), (9,))),
    ]
    state = empty()
    for slot, sampling in enumerate(samplings):
        state = written(state, slot, sampling, [1, 2], [2, 3])
    values = jnp.asarray(logits(3))
    every = [(slot, 9, sampling) for slot, sampling in enumerate(samplings)]
    together = edit_logits(values, state, rows(every))
    np.testing.assert_array_equal(together[0], values[0])
    for slot in range(3):
        alone = edit_logits(values[slot : slot + 1], state, rows(every[slot : slot + 1]))
        np.testing.assert_array_equal(together[slot], alone[0])


def test_a_new_sequence_finds_nothing_of_the_last_one_in_its_slot() -> None:
    words = ((3, 4), (5,))
    first = asked(frequency_penalty=2.0, logit_bias=((4, 9.0),), allowed=(4, 5), bad_words=words)
    state = written(empty(), 1, first, [1, 2], [2, 3])
    second = asked(frequency_penalty=1.0, allowed=tuple(range(VOCAB)), logit_bias=((7, 1.0),))
    fresh = written(empty(), 1, second, [9], [10])
    for one, other in zip(written(state, 1, second, [9], [10]), fresh, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_bytes_that_are_planned_are_those_of_the_state() -> None:
    for limits in (LIMITS, DRAFTING):
        planned = state_bytes(limits.slots, limits.draft_rows, VOCAB)
        assert planned == sum(array.nbytes for array in empty(limits))


def test_more_biases_than_a_slot_holds_are_refused() -> None:
    biases = tuple((token, 1.0) for token in range(MOST_BIASES))
    check_biases(asked(logit_bias=biases, ends=(1,)))
    with pytest.raises(InvalidRequest, match="at most 512 are allowed"):
        check_biases(asked(logit_bias=biases, ends=(1,), min_tokens=3))


@settings(max_examples=10)
@given(
    words=words_,
    texts=st.tuples(*[st.lists(st.integers(0, 3), max_size=6)] * 2),
    wrong=st.integers(0, 5),
    seed=st.integers(0, 99),
)
def test_rows_behind_draft_tokens_choose_and_keep_what_they_would_one_by_one(
    words: tuple[tuple[int, ...], ...], texts: tuple[list[int], list[int]], wrong: int, seed: int
) -> None:
    """Four likely tokens, so that penalties and bad words often decide. The neighbour has none."""
    free = asked(presence_penalty=0.4, frequency_penalty=0.3, bad_words=words)
    sampling = replace(free, min_tokens=8, ends=(2,), repetition_penalty=1.1)
    begun = written(written(empty(DRAFTING), 1, sampling, *texts), 2, free, [1])
    first = sum(map(len, texts))
    values = np.random.default_rng(seed).normal(size=(6, VOCAB)).astype(np.float32) - 9
    values[:, :4] += 9
    note, edit = _jitted()
    alone, chosen = begun, list[int]()
    for place in range(6):
        row = rows([(1, first + place, sampling)])
        token = edit(jnp.asarray(values[place : place + 1]), alone, row).argmax(-1)
        alone, chosen = note(alone, row, token.astype(jnp.int32)), [*chosen, int(token[0])]
        if place <= wrong:
            kept = alone
    drafts = [each ^ (place == wrong) for place, each in enumerate(chosen[:5])]
    places = [(2, 4, free), *((1, first + place, sampling) for place in range(6)), (3, 0, asked())]
    together = rows(places, [-1, -1, *drafts, -1])
    edited = edit(jnp.asarray(np.concatenate([values[:1], values, values[:1]])), begun, together)
    tokens = edited.argmax(-1).astype(jnp.int32)
    assert tokens[1 : 2 + wrong].tolist() == chosen[: 1 + wrong]
    for one, other in zip(note(begun, together, tokens), kept, strict=True):
        np.testing.assert_array_equal(one[1], other[1])


def test_a_guided_row_behind_a_draft_token_has_a_mask_of_its_own() -> None:
    guided, free = asked(guided=True), asked(allowed=(3,))
    state = written(written(empty(DRAFTING), 0, guided, [1]), 1, free, [1])
    masks = np.zeros((3, 1 + -(-VOCAB // 32)), np.int32)
    masks[:, 0], masks[:, 1] = (0, LIMITS.slots + 1 + 1, LIMITS.slots), (1 << 5, 1 << 7, 0)
    state = write_masks(state, jnp.asarray(masks))
    places = [(0, 1, guided), (0, 2, guided), (1, 1, free), (1, 2, free)]
    got = edit_logits(jnp.zeros((4, VOCAB)), state, rows(places, [-1, 5, -1, 3]))
    assert np.argwhere(np.isfinite(got))[:, 1].tolist() == [5, 7, 3, 3]
