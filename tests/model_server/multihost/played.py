"""A short life of three sequences as the engine would launch it: the steps, and how to play them.

A prompt in two chunks that wants rivals, a prompt that draws with a seed, and one that is scored,
while the others decode. No step depends on what the steps before it gave.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from model_server.engine.buckets import Bucket
from model_server.engine.limits import EngineLimits
from model_server.engine.running.ops import Choose, Runner
from model_server.engine.types import (
    PageGrant,
    Row,
    Sampling,
    SlotMask,
    SlotSampling,
    Step,
    StepResult,
)
from tests.model_server.tiny import PAGE

LIMITS = EngineLimits(
    slots=4,
    pages=16,
    page_size=PAGE,
    max_context=32,
    token_budget=20,
    max_logit_rows=6,
    prefill_block=8,
)
BUCKETS = (Bucket(4, 2),)  # one is enough and compiling is slow
VOCAB = 97
DECODES = 8

_GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0, logprobs=3)
_DRAWN = Sampling(temperature=1.5, top_k=40, top_p=0.95, seed=2**40 + 7)
_PENALISED = replace(_GREEDY, repetition_penalty=1.5, presence_penalty=0.3, frequency_penalty=0.2)
_RESTRICTED = replace(
    _DRAWN,
    allowed=tuple(range(0, VOCAB, 2)),
    logit_bias=((4, 3.0), (6, -100.0)),
    min_p=0.001,
    typical_p=0.99,
    min_tokens=4,
    ends=(8, 10, 12),
    guided=True,
)


def steps(*, edited: bool = False) -> list[Step]:
    """Numbered as an engine numbers them. edited: with penalties, biases, forbidden tokens and, in
    the later steps, masks."""
    first, second, third = (_prompt(seed, size) for seed, size in ((1, 13), (2, 6), (3, 10)))
    greedy, drawn = SlotSampling(0, _GREEDY), SlotSampling(1, _DRAWN)
    if edited:
        greedy = SlotSampling(0, _PENALISED, first, len(first))
        drawn = SlotSampling(1, _RESTRICTED, second, len(second))
    scored = Row(3, 2, 0, third, False, targets=_prompt(4, 4))
    begin = Step(
        1,
        (Row(1, 0, 0, first[:8], False),),
        (PageGrant(0, 0, (3, 1, 9)), PageGrant(1, 0, (2, 8)), PageGrant(2, 0, (5, 4))),
        (greedy, drawn),
    )
    prompts = Step(2, (Row(1, 0, 8, first[8:], True), Row(2, 1, 0, second, True)))
    decodes = [
        Step(3 + n, (Row(1, 0, 13 + n, (), True), Row(2, 1, 6 + n, (), True)))
        for n in range(DECODES)
    ]
    mixed = Step(3, (*decodes[0].rows, scored))
    later = [replace(step, guided=edited) for step in decodes[1:]]
    return [begin, prompts, mixed, *later]


def mask_of(step: Step) -> SlotMask:
    """A mask for slot 1 that is another one in the next step."""
    flags = np.zeros(32 * -(-VOCAB // 32), np.uint8)
    flags[step.number % 5 : VOCAB : 5] = 1
    return SlotMask(1, np.packbits(flags, bitorder="little").tobytes())


def play(runner: Runner, played: Sequence[Step]) -> list[StepResult]:
    """Each step is launched before the one before it is read, as the engine does."""
    pending, results = None, []
    for step in played:
        ahead = runner.launch(step)
        if pending:
            results += pending.result()
        if step.guided:
            runner.do(Choose((mask_of(step),)))
        pending = ahead
    assert pending
    return [*results, *pending.result()]


def tokens_of(results: Sequence[StepResult]) -> list[list[int | None]]:
    return [[row.token for row in result.rows] for result in results]


def numbers_of(results: Sequence[StepResult]) -> np.ndarray:
    """Every log-probability there is."""
    rows = [row for result in results for row in result.rows]
    return np.asarray(
        [
            number
            for row in rows
            for number in (row.logprob, *row.target_logprobs, *(p for _, p in row.top))
        ]
    )


def _prompt(seed: int, size: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, VOCAB, size=size).tolist())
