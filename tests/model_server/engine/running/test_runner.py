"""The real runner on a tiny random model: steps of any mix equal whole-sequence evaluation."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import numpy as np
import pytest
from msgspec.structs import replace

from model_server.engine.buckets import closed_set
from model_server.engine.limits import EngineLimits
from model_server.engine.running.ops import Choose, DropPages
from model_server.engine.running.runner import ModelRunner
from model_server.engine.step_program import StepProgram
from model_server.engine.types import PageGrant, Row, RowResult, Sampling, SlotSampling, Step
from model_server.kernels import xla
from model_server.loading.random_weights import random_weights
from model_server.models.registry import make_recipe
from tests.model_server.tiny import PAGE, WholeSequences, empty_pages

TINY = {
    "NUM_LAYERS": "2",
    "MODEL_DIMS": "32",
    "HIDDEN_DIMS": "64",
    "NUM_HEADS": "4",
    "DIMS_PER_HEAD": "8",
    "VOCAB_SIZE": "97",
    "INPUT_SEQ_LEN": "32",
    "DTYPE": '"float32"',
}
LIMITS = EngineLimits(
    slots=4,
    pages=32,
    page_size=PAGE,
    max_context=64,
    token_budget=36,
    max_logit_rows=4,
    prefill_block=8,
)
PROMPT = tuple(int(x) for x in np.random.default_rng(1).integers(0, 97, size=21))
GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)


class Tiny:
    """A tiny model, whole and behind a runner."""

    def __init__(self, limits: EngineLimits = LIMITS) -> None:
        self.recipe = make_recipe(
            "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest", None, TINY
        )
        module = self.recipe.blueprint()
        leaves = random_weights(module.declarations, 3, lambda _: None)
        # The runner frees what it is given; the whole model keeps its own copy.
        model = module.assemble([leaf.copy() for leaf in leaves])
        self.whole = WholeSequences(model, self.recipe, 32)
        pages = empty_pages(self.recipe, LIMITS.pages)
        program = StepProgram(module, leaves, pages, limits, xla.KERNEL, vocab=self.recipe.vocab)
        self.runner = ModelRunner(program, leaves, pages, closed_set(LIMITS.slots, (1, 4)))


@pytest.fixture(scope="module")
def tiny() -> Iterator[Tiny]:
    made = Tiny()
    made.runner.compile(lambda _: None)
    yield made
    made.runner.close()


def test_a_chunked_prompt_and_decodes_give_the_whole_sequences_tokens(tiny: Tiny) -> None:
    runner = tiny.runner
    grant = PageGrant(2, 0, (5, 9, 3, 7))
    first = Step(1, (Row(1, 2, 0, PROMPT[:8], False),), (grant,), (SlotSampling(2, GREEDY),))
    runner.launch(first).result()
    got = [runner.launch(Step(2, (Row(1, 2, 8, PROMPT[8:], True),))).result()[0].rows[0].token]
    pending = runner.launch(Step(3, (Row(1, 2, 21, (), True),)))
    for number in range(4, 8):  # one step ahead of what the host has read, as the engine runs
        ahead = runner.launch(Step(number, (Row(1, 2, 18 + number, (), True),)))
        got.append(pending.result()[0].rows[0].token)
        pending = ahead
    got.append(pending.result()[0].rows[0].token)
    assert got == tiny.whole.greedy(PROMPT, 6)


def test_a_runner_does_only_what_its_parts_do(tiny: Tiny) -> None:
    assert list(tiny.runner.ops) == [Choose]
    with pytest.raises(KeyError):
        tiny.runner.do(DropPages(1))


def test_a_series_gives_the_tokens_and_rivals_of_single_steps() -> None:
    made = Tiny(replace(LIMITS, steps_per_launch=3))
    runner = made.runner
    runner.compile(lambda _: None)
    for index in range(runner.warmups):
        runner.warm(index)
    sampled = Sampling(
        temperature=0.9, top_k=0, top_p=1.0, seed=7, presence_penalty=0.5, logprobs=2
    )
    count = 21
    answers: list[list[RowResult]] = []
    for series in (False, True):
        grant = PageGrant(2, 0, (5, 9, 3, 7))
        setting = SlotSampling(2, sampled, PROMPT, count)
        prompt = Step(1, (Row(1, 2, 0, PROMPT, True),), (grant,), (setting,))
        results = [runner.launch(prompt).result()[0].rows[0]]
        steps = [Step(n, (Row(1, 2, count + n - 2, (), True),)) for n in range(2, 8)]
        if series:
            pending = [runner.launch(*steps[:3]), runner.launch(*steps[3:])]
        else:
            pending = map(runner.launch, steps)
        results += [step.rows[0] for each in pending for step in each.result()]
        answers.append(results)
    assert [each.token for each in answers[0]] == [each.token for each in answers[1]]
    assert answers[0] == answers[1]
    assert all(len(each.top) == 2 for each in answers[1])
    runner.close()


def test_sequences_in_one_step_do_not_touch_each_other(tiny: Tiny) -> None:
    prompts = [PROMPT[:5], PROMPT[5:16], PROMPT[3:20]]
    rows, grants, samplings = [], [], []
    for slot, prompt in enumerate(prompts):
        pages = tuple(range(1 + 4 * slot, 5 + 4 * slot))
        rows.append(Row(slot, slot, 0, prompt, True))
        grants.append(PageGrant(slot, 0, pages))
        samplings.append(SlotSampling(slot, GREEDY))
    step = Step(1, tuple(rows[:2]), tuple(grants), tuple(samplings))
    got = [[row.token] for row in tiny.runner.launch(step).result()[0].rows]
    mixed = Step(2, (Row(0, 0, 5, (), True), Row(1, 1, 11, (), True), rows[2]))
    (result,) = tiny.runner.launch(mixed).result()
    got[0].append(result.rows[0].token)
    got[1].append(result.rows[1].token)
    got.append([result.rows[2].token])
    wanted = [tiny.whole.greedy(p, n) for p, n in zip(prompts, (2, 2, 1), strict=True)]
    assert got == wanted


def test_a_decode_takes_the_token_that_its_step_gives_it(tiny: Tiny) -> None:
    """Beside another decode of the same step that takes its slot's last token."""
    prompt, given = PROMPT[:5], 11
    grants = (PageGrant(0, 0, (1, 2)), PageGrant(1, 0, (3, 4)))
    samplings = (SlotSampling(0, GREEDY), SlotSampling(1, GREEDY))
    begin = Step(1, (Row(0, 0, 0, prompt, True), Row(1, 1, 0, prompt, True)), grants, samplings)
    tiny.runner.launch(begin).result()
    rows = (Row(0, 0, 5, (), True, given=given), Row(1, 1, 5, (), True))
    got = [row.token for row in tiny.runner.launch(Step(2, rows)).result()[0].rows]
    assert got == [*tiny.whole.greedy((*prompt, given), 1), tiny.whole.greedy(prompt, 2)[1]]


def test_targets_are_scored_with_their_log_probabilities(tiny: Tiny) -> None:
    suffix = PROMPT[10:14]
    grant = PageGrant(0, 0, (11, 12, 13))
    # The logits after positions 9, 10, 11 and 12 score the tokens at 10, 11, 12 and 13.
    step = Step(1, (Row(7, 0, 0, PROMPT[:13], False, suffix),), (grant,))
    got = tiny.runner.launch(step).result()[0].rows[0].target_logprobs
    logits = tiny.whole.logits(PROMPT[:13])
    wanted = jax.nn.log_softmax(logits)[np.arange(9, 13), np.asarray(suffix)]
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_a_row_scores_its_prompt_and_yields_a_token(tiny: Tiny) -> None:
    """With the rank of each target and its likeliest tokens, beside a row that wants neither."""
    tokens, targets = PROMPT[:13], PROMPT[11:13]
    scored = Row(7, 0, 0, tokens, True, targets, target_tops=2)
    plain = Row(8, 1, 0, PROMPT[:5], False, PROMPT[4:5])
    grants = (PageGrant(0, 0, (11, 12, 13)), PageGrant(1, 0, (14, 15)))
    samplings = (SlotSampling(0, GREEDY), SlotSampling(1, GREEDY))
    got, other = tiny.runner.launch(Step(1, (scored, plain), grants, samplings)).result()[0].rows
    logits = tiny.whole.logits(tokens)
    logprobs = np.asarray(jax.nn.log_softmax(logits))[10:12]
    own = logprobs[np.arange(2), np.asarray(targets)]
    np.testing.assert_allclose(got.target_logprobs, own, rtol=1e-4, atol=1e-4)
    assert got.target_ranks == tuple((logprobs > own[:, None]).sum(-1) + 1)
    best = np.argsort(-logprobs, axis=-1)[:, :2]
    assert [[token for token, _ in top] for top in got.target_tops] == best.tolist()
    assert (got.token, got.top) == (logits[-1].argmax(), ())
    assert len(other.target_logprobs) == 1
    assert (other.token, other.target_ranks, other.target_tops) == (None, (), ())


def test_wanted_rivals_come_back_and_unwanted_do_not(tiny: Tiny) -> None:
    wanting = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0, logprobs=3)
    step = Step(
        1,
        (Row(1, 0, 0, PROMPT[:4], True), Row(2, 1, 0, PROMPT[:4], True)),
        (PageGrant(0, 0, (1,)), PageGrant(1, 0, (2,))),
        (SlotSampling(0, wanting), SlotSampling(1, GREEDY)),
    )
    first, second = tiny.runner.launch(step).result()[0].rows
    assert len(first.top) == 3
    assert first.top[0] == (first.token, pytest.approx(first.logprob))
    assert second.top == ()
    assert second.token == first.token


def test_a_seeded_draw_is_the_same_alone_and_in_a_batch(tiny: Tiny) -> None:
    drawn = Sampling(temperature=2.0, top_k=50, top_p=0.9, seed=2**63 + 5)
    alone = Step(
        1, (Row(1, 3, 0, PROMPT[:6], True),), (PageGrant(3, 0, (1,)),), (SlotSampling(3, drawn),)
    )
    token = tiny.runner.launch(alone).result()[0].rows[0].token
    batch = Step(
        2,
        tuple(Row(slot, slot, 0, PROMPT[:6], True) for slot in (0, 1)),
        (PageGrant(0, 0, (2,)), PageGrant(1, 0, (3,))),
        (SlotSampling(0, drawn), SlotSampling(1, drawn)),
    )
    assert [row.token for row in tiny.runner.launch(batch).result()[0].rows] == [token, token]
