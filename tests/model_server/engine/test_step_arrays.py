"""Packing: what the device is told about a step, part by part."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from model_server.engine.buckets import Bucket
from model_server.engine.column_layout import ColumnLayout
from model_server.engine.limits import EngineLimits
from model_server.engine.step_arrays import StepArrays
from model_server.engine.types import PageGrant, Row, Sampling, SlotSampling, Step

LIMITS = EngineLimits(
    slots=4,
    pages=20,
    page_size=4,
    max_context=16,
    token_budget=24,
    max_logit_rows=4,
    prefill_block=8,
)
MIXED = ColumnLayout(Bucket(4, 2), LIMITS)


def packed(*steps: Step, layout: ColumnLayout = MIXED) -> tuple[dict[str, np.ndarray], list]:
    """The views of the last of some steps, packed one after the other."""
    arrays = StepArrays(LIMITS)
    for step in steps:
        vector, ranges = arrays.pack(step, layout)
    return layout.views(vector), ranges


def test_the_parts_cover_the_vector_without_gaps() -> None:
    ends = 0
    for offset, shape in MIXED.parts.values():
        assert offset == ends
        ends += int(np.prod(shape))
    assert MIXED.size == ends


def test_a_decode_row_writes_where_its_page_table_says() -> None:
    step = Step(1, (Row(1, 2, 9, (), True),), (PageGrant(2, 0, (7, 3, 5)),))
    views, ranges = packed(step)
    assert views["positions"][0] == 9
    assert (views["pages"][0], views["offsets"][0]) == (5, 1)  # token 9 is in page index 2
    assert views["decode_tables"][0].tolist() == [7, 3, 5, 0]
    assert views["decode_limits"][0, 0] == 10
    assert ranges == [(0, 1)]


def test_a_prompt_fills_its_blocks_and_sees_only_its_past() -> None:
    step = Step(1, (Row(1, 0, 4, tuple(range(50, 60)), True),), (PageGrant(0, 0, (1, 2, 3, 4)),))
    views, ranges = packed(step)
    assert views["tokens"][4:14].tolist() == list(range(50, 60))
    assert views["block_limits"].reshape(-1)[:11].tolist() == [*range(5, 15), 0]
    assert views["block_tables"].tolist() == [[1, 2, 3, 4], [1, 2, 3, 4]]
    first, end = ranges[0]
    assert end - first == 1
    assert views["row_index"][first] == 4 + 9  # its last token
    assert views["row_position"][first] == 14  # the position of the token to come


def test_padding_writes_to_the_scratch_page_and_the_scratch_slot() -> None:
    views, _ = packed(Step(1, (Row(1, 1, 0, (5,), True),), (PageGrant(1, 0, (9,)),)))
    used = 4  # the one prompt token stands behind the four decode rows
    assert np.delete(views["pages"], used).tolist() == [0] * (MIXED.tokens - 1)
    assert views["decode_slots"].tolist() == [LIMITS.slots] * 4
    assert sorted(views["row_slot"].tolist()) == [1, 4, 4, 4]
    assert views["decode_limits"].sum() == 0


def test_grants_and_samplings_last_until_they_change() -> None:
    sampling = Sampling(temperature=0.5, top_k=3, top_p=0.25, seed=(7 << 32) + 9, logprobs=2)
    first = Step(1, (), (PageGrant(3, 0, (6,)),), (SlotSampling(3, sampling),))
    second = Step(2, (), (PageGrant(3, 1, (8,)),))
    views, _ = packed(first, second, Step(3, (Row(1, 3, 5, (), True),)))
    assert views["decode_tables"][0].tolist() == [6, 8, 0, 0]
    assert views["temperature"].view(np.float32)[0] == 0.5
    assert views["top_p"].view(np.float32)[0] == 0.25
    assert (views["top_k"][0], views["tops"][0]) == (3, 2)
    assert (views["seed_high"][0], views["seed_low"][0]) == (7, 9)


def test_idle_rows_ask_for_no_top_p() -> None:
    views, _ = packed(Step(1, ()))
    assert (views["top_p"].view(np.float32) == 1.0).all()
    assert (views["target"] == -1).all()


@given(
    st.lists(st.tuples(st.integers(0, 11), st.booleans()), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_every_real_token_has_a_place_of_its_own(rows: list[tuple[int, bool]], random) -> None:
    pages = list(range(1, LIMITS.pages + 1))
    random.shuffle(pages)
    grants, made = [], []
    blocks = 2
    for slot, (start, prompt) in enumerate(rows):
        grants.append(PageGrant(slot, 0, tuple(pages[slot * 4 : slot * 4 + 4])))
        if prompt and blocks:
            blocks -= 1
            made.append(Row(slot, slot, start, tuple(range(1, 5)), True))
        else:
            made.append(Row(slot, slot, start, (), True))
    views, ranges = packed(Step(1, tuple(made), tuple(grants)))
    places = list(zip(views["pages"].tolist(), views["offsets"].tolist(), strict=True))
    real = [place for place in places if place[0]]
    assert len(real) == len(set(real)) == sum(row.count for row in made)
    taken = [row for first, end in ranges for row in range(first, end)]
    assert len(taken) == len(set(taken)) == len(made)
