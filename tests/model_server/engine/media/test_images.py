"""Images in the engine, on the arithmetic runner: a wrong vector changes the answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence as Seq
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from model_server.engine.engine import Engine
from model_server.engine.limits import EngineLimits, check_limits
from model_server.engine.registry import new_sequence
from model_server.engine.request import EngineRequest, SequenceUpdate
from model_server.engine.running.ops import Choose, Pending
from model_server.engine.scheduler import Scheduler
from model_server.engine.types import BeamSettings, Step, StepResult
from sax.errors import InvalidRequest
from tests.model_server.engine.fake_runner import GREEDY, FakeRunner, logprob
from tests.model_server.engine.media.driven import Driven
from tests.model_server.engine.media.fake_images import (
    ENCODER,
    IMAGE,
    MEDIA,
    answer,
    image,
    limits,
    request,
    seen,
)
from tests.model_server.engine.parts import test_grammar as forced

ITSELF = replace(MEDIA, encoders=(replace(ENCODER, bidirectional=True),))
_FALLING = replace(ENCODER, pieces=(8, 4))


def driven_by(limits: EngineLimits) -> Driven:
    return Driven(limits, FakeRunner(limits))


def answers(limits: EngineLimits, *asked: EngineRequest) -> tuple[Driven, list[list[int]]]:
    driven = driven_by(limits)
    ids = [driven.add(each) for each in asked]
    driven.run()
    return driven, [driven.tokens(id) for id in ids]


def test_an_image_is_seen_where_it_stands():
    asked = request((1, 2), [50, 51, 52], (3,))
    driven, (got,) = answers(limits(), asked)
    assert got == answer(asked)
    assert len(driven.runner.batches) == 1


def test_an_image_sent_twice_is_encoded_once():
    one = request((1,), [50, 51], (3,), [50, 51])
    other = request((9, 9, 9), [50, 51])
    driven, got = answers(limits(), one, other)
    assert got == [answer(one), answer(other)]
    assert sum(len(batch.parts) for batch in driven.runner.batches) == 1


def test_small_images_are_encoded_together():
    asked = request([1, 2], (7,), [3, 4, 5], (8,))
    driven, (got,) = answers(limits(), asked)
    assert got == answer(asked)
    assert [len(batch.parts) for batch in driven.runner.batches] == [2]


def test_two_encoders_write_into_one_buffer_each_in_batches_of_its_own():
    """An image, a sound of the same numbers, which is another medium, and another image."""
    sounds = replace(ENCODER, kind="audio", pieces=(8,))
    both = replace(MEDIA, encoders=(ENCODER, sounds))
    spans = (image([5, 6], (1, 3)), image([5, 6], (4, 6), encoder=1), image([7, 6], (6, 8)))
    asked = replace(request((1, 9, 9, 2, 9, 9, 9, 9, 3)), media=spans)
    driven, (got,) = answers(limits(both), asked)
    assert got == answer(asked)
    told = [(batch.encoder, batch.size, len(batch.parts)) for batch in driven.runner.batches]
    assert told == [(0, 4, 1), (1, 8, 1), (0, 4, 1)]


def test_a_prompt_is_computed_up_to_its_first_image_that_is_not_encoded():
    driven = driven_by(limits())
    driven.add(request((1, 2, 3), [50, 51], (4,)))
    driven.turn()
    assert [row.tokens for row in driven.steps[0].rows] == [(1, 2, 3)]
    driven.turn()
    assert all(token < 0 for token in driven.steps[1].rows[0].tokens[:2])


def test_decodes_go_on_between_batches_of_the_encoder():
    driven = driven_by(limits(max_context=128))
    stream = driven.add(request((1,), max_tokens=40))
    for _ in range(3):
        driven.turn()
    before = len(driven.steps)
    asked = request([1] * 8, [2] * 8, [3] * 8, [4] * 8)
    driven.add(asked)
    driven.run()
    log = "".join(each[0] for each in driven.log)
    assert "ee" not in log  # never two batches without a step between them
    assert log.count("e") == 4
    decoded = [any(r.sequence == stream and r.is_decode for r in s.rows) for s in driven.steps]
    assert all(decoded[before : before + 8])


def test_rows_are_not_overwritten_while_a_prompt_needs_them():
    """Three images fill more than the buffer: the last waits until the first has been computed."""
    asked = request([1] * 8, (5, 6), [2] * 8, (7,), [3] * 8, (8,))
    _, (got,) = answers(limits(token_budget=4 + 4), asked)
    assert got == answer(asked)


def test_images_that_come_again_leave_their_rows_to_those_before():
    asked = request([1] * 8, [2] * 8, [3] * 8, [1] * 8, [2] * 8, (5,))
    _, (got,) = answers(limits(), asked)
    assert got == answer(asked)


def test_media_that_take_turns_never_wait_for_each_other_for_ever():
    """A prompt keeps a sound while it needs rows for the images between its tokens. That of the
    second is still there from before, and both leave no room for an image: it lets go of it."""

    def woven(first: int, text: int) -> EngineRequest:
        runs = ((text, text + 2), (text + 8, text + 10), (text + 16, text + 19))
        sound = image([first] * 7, *runs)
        others = (image([first + n] * 6, (end, end + 6)) for n, (_, end) in enumerate(runs[:2], 1))
        prompt = ((1,) * text, (IMAGE,) * 19, (5, 6))
        return replace(request(*prompt), media=(sound, *others), account=str(first))

    driven = driven_by(limits())
    driven.add(request((3,), [20] * 7, (4,)))
    driven.run()
    asked = [woven(10, 4), woven(20, 0)]
    ids = [driven.add(each) for each in asked]
    driven.run()
    assert [driven.tokens(id) for id in ids] == [answer(each) for each in asked]


def test_a_preempted_prompt_has_its_images_again():
    tight = limits(pages=14, slots=3, max_context=48)
    asked = [
        request((1,), [10, 11, 12], (2,), max_tokens=24),
        request((3,), [20, 21, 22], (4,), max_tokens=24),
        request((5,), [30, 31, 32], (6,), max_tokens=24),
    ]
    driven, got = answers(tight, *asked)
    assert driven.scheduler.preemptions > 0
    assert got == [answer(each) for each in asked]


def test_equal_images_share_pages_and_other_images_do_not():
    shared = limits(prefix_cache="all")
    asked = request((1, 2), [50, 51, 52, 53, 54, 55], (3,))
    other = request((1, 2), [50, 51, 52, 53, 54, 56], (3,))
    driven = driven_by(shared)
    first = driven.add(asked)
    driven.run()
    again, changed = driven.add(asked), driven.add(other)
    driven.run()
    assert driven.tokens(again) == driven.tokens(first) == answer(asked)
    assert driven.tokens(changed) == answer(other)
    assert driven.last(again).cached == len(asked.prompt) - 1
    assert driven.last(changed).cached == 2
    assert sum(len(batch.parts) for batch in driven.runner.batches) == 2


def test_an_answer_begun_elsewhere_goes_on():
    asked = request((1, 2), [50, 51], (3,), max_tokens=6)
    whole = answer(asked)
    _, (got,) = answers(limits(), replace(asked, answer=tuple(whole[:4])))
    assert got == whole[4:]


def test_what_follows_an_image_is_scored_and_the_image_is_not():
    asked = request((1, 2), [50, 51], (3, 4, 5), max_tokens=0)
    driven = driven_by(limits())
    id = driven.add(replace(asked, score_from=5))
    driven.run()
    tokens = seen(asked)
    wanted = tuple(logprob(tokens[:at], tokens[at]) for at in (5, 6))
    assert driven.last(id).result.target_logprobs == wanted
    with pytest.raises(InvalidRequest, match="tokens of an image have no scores"):
        new_sequence(9, replace(asked, score_from=3), limits())


def test_penalties_count_no_image():
    sampling = replace(GREEDY, repetition_penalty=1.3)
    driven = driven_by(limits())
    driven.add(replace(request((1, 2), [50, 51], (3,)), sampling=sampling))
    driven.run()
    (change,) = [each for step in driven.steps for each in step.samplings]
    assert change.tokens == (1, 2, -1, -1, 3)


def test_beams_share_the_image_of_their_prompt():
    beams = BeamSettings(size=2, length_penalty=0.0)
    sampling = replace(GREEDY, logprobs=4)
    text = request((1, 2, 50, 51, 3), beams=beams, sampling=sampling, stop_ids=frozenset({96}))
    asked = request((1, 2), [50, 51], (3,), beams=beams, sampling=sampling)
    asked = replace(asked, stop_ids=text.stop_ids)
    found: list[Any] = []
    for each in (text, asked):
        driven = driven_by(limits())
        id = driven.add(each)
        driven.run()
        found.append(driven.last(id).hypotheses)
    assert found[0] == found[1]
    assert found[0]


def test_an_image_whose_tokens_see_each_other_lies_in_one_chunk():
    asked = request((1, 2, 3), [50, 51, 52, 53, 54, 55], (4,), [60, 61, 62])
    beside = request((8,), max_tokens=30)
    driven, got = answers(limits(ITSELF), beside, asked)
    assert got == [answer(beside), answer(asked)]
    runs = [run for span in asked.media for run in span.runs]
    for row in (row for step in driven.steps for row in step.rows if row.tokens):
        end = row.start + row.count
        assert all(not first < end < last for first, last in runs if row.sequence == 2)
        told = {(row.start + first, row.start + last) for first, last in _together(row)}
        inside = {run for run in runs if row.start <= run[0] < end and row.sequence == 2}
        assert told == inside


def _together(row: Any) -> Seq[tuple[int, int]]:
    return () if row.media is None else row.media.together


def test_an_image_that_one_chunk_must_hold_is_computed_however_slow_prompts_go() -> None:
    """One block of four tokens beside decodes is too little for it."""
    beside, asked = request((8,), max_tokens=40), request((1, 2, 3), [50] * 8, (4,))
    paced = limits(ITSELF, max_mixed_blocks=1)
    driven = driven_by(paced)
    stream = driven.add(beside)
    for _ in range(3):
        driven.turn()
    id = driven.add(asked)
    for _ in range(12):
        driven.turn()
    assert len(driven.tokens(stream)) < 40
    assert driven.tokens(id) == answer(asked)
    driven.run()


def test_what_follows_an_image_that_one_chunk_must_hold_is_scored():
    """The logit rows end behind the image, and the last whole block of four tokens within it."""
    asked = request((1, 2), [50] * 5, (3, 4, 5, 6), max_tokens=0)
    driven = driven_by(limits(ITSELF, slots=2, max_logit_rows=2))
    id = driven.add(replace(asked, score_from=8))
    driven.run()
    tokens = seen(asked)
    wanted = tuple(logprob(tokens[:at], tokens[at]) for at in (8, 9, 10))
    assert driven.last(id).result.target_logprobs == wanted


def test_limits_that_could_never_hold_an_image_are_refused():
    for changes, words in (
        ({"media": replace(MEDIA, rows=7)}, "the largest needs 8"),
        ({"media": ITSELF, "token_budget": 4 + 4}, "one chunk must hold an image of 8"),
        ({"media": replace(MEDIA, encoders=(_FALLING,))}, "pieces must rise"),
    ):
        with pytest.raises(ValueError, match=words):
            check_limits(limits(**changes))


PARTS = st.lists(
    st.one_of(
        st.lists(st.integers(0, 89), min_size=1, max_size=6).map(tuple),
        st.sampled_from([[50], [51, 52], [53] * 5, [54, 55, 56, 57, 58, 59, 60, 61]]),
    ),
    min_size=1,
    max_size=4,
)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(PARTS, st.integers(0, 6)), min_size=1, max_size=6),
    st.booleans(),
    st.sampled_from(["off", "all"]),
    st.integers(14, 40),
    st.sampled_from([None, 1]),
)
def test_answers_are_those_of_the_whole_model(
    asked: list[tuple[list[Any], int]],
    itself: bool,
    sharing: Any,
    pages: int,
    mixed: int | None,
):
    media = ITSELF if itself else MEDIA
    sizes = {"prefix_cache": sharing, "pages": pages, "max_mixed_blocks": mixed}
    driven = driven_by(limits(media, max_context=56, **sizes))
    ids: list[tuple[int, EngineRequest]] = []
    for parts, turns in asked:
        each = request(*parts, max_tokens=4)
        ids.append((driven.add(each), each))
        for _ in range(turns):
            driven.turn()
    driven.run()
    assert [driven.tokens(id) for id, _ in ids] == [answer(each) for _, each in ids]


DRAFTING = {"draft_tokens": 2, "max_decodes": 6}


@pytest.mark.parametrize("more", [{}, {"steps_per_launch": 4}, DRAFTING])
def test_the_engine_serves_images_beside_text(more: dict[str, Any]) -> None:
    """Also in series of steps, and where it drafts tokens that it has seen before."""
    done = threading.Semaphore(0)
    got: dict[int, list[int]] = {}

    def deliver(updates: Seq[SequenceUpdate]) -> None:
        for update in updates:
            if update.result.token is not None:
                got.setdefault(update.sequence, []).append(update.result.token)
            if update.finish:
                done.release()

    rows: dict[str, Any] = {}
    if "draft_tokens" in more:
        rows = {"token_budget": 6 + 16, "max_logit_rows": 6}
    engine = Engine(FakeRunner(limits(**more, **rows)), deliver)
    asked = [
        request((1,), max_tokens=12),
        request([50, 51], (2, 3, 4), [52, 53], (2, 3, 4), [50, 51], (2, 3, 4), max_tokens=12),
    ]
    ids = [engine.submit(each) for each in asked]
    assert all(done.acquire(timeout=60) for _ in ids)
    engine.close()
    assert [got[id] for id in ids] == [answer(each) for each in asked]


@pytest.mark.parametrize(
    ("whole", "asked"),
    [
        ({"media": ITSELF}, request((1,), [50] * 8, max_tokens=1)),
        ({"bidirectional_prompt": 8}, request((1,), [50] * 7, max_tokens=1)),
    ],
)
def test_streams_of_forced_tokens_leave_one_chunk_the_blocks_that_it_needs_at_once(
    whole: dict[str, Any], asked: EngineRequest
) -> None:
    """An image's, or that of a prompt, whose tokens see each other."""
    sizes = limits(**whole, slots=4, max_logit_rows=12, max_prefill_blocks=2)
    runner, scheduler = FakeRunner(sizes), Scheduler(sizes)
    # With runs of one length, in steps of one parity each, so that one is in every step.
    runs = [forced.asked(3, forced.Forcing(40, every=1, run=40), max_tokens=40)] * 2
    coming = [runs[0], runs[1], asked]
    ended: list[int] = []
    in_flight: list[tuple[Step, Pending[list[StepResult]]]] = []
    for turn in count():
        if turn < len(coming):
            scheduler.add(new_sequence(turn, coming[turn], sizes))
        elif not scheduler.load().live:
            break
        step = scheduler.schedule()
        launched = [(step, runner.launch(step))] if step else []
        if (op := scheduler.op()) is not None:
            runner.do(op)
        for each, pending in in_flight:
            updates = scheduler.commit(each, pending.result()[0])
            ended += [update.sequence for update in updates if update.finish]
        if step and step.guided:
            runner.do(Choose(tuple(scheduler.masks(step)[0])))
        in_flight = launched
    assert ended[0] == 2
