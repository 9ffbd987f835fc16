"""Every sampling field on a real model: its effect, alone and in any batch, after a preemption, and
when another replica goes on with an answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from msgspec.structs import replace as with_fields

from model_server.config import ModelServerConfig
from model_server.engine.engine import Engine, SequenceUpdate
from model_server.loading.loaded import Loaded
from model_server.loading.loader import make_loader
from model_server.serving.answers.detokenizer import Detokenizer
from model_server.serving.engine_request import make_engine_request
from model_server.serving.request_checks import check_sampling
from sax.fields.sampling import SAMPLING, SamplingParams
from sax.types import GenerateRequest, ModelSpec, TokenLogprob
from tests.demo_model import COMPILE_CACHE, demo_model

# Compiling the model in float32 for the first time takes a minute or two.
pytestmark = pytest.mark.timeout(600)

PROMPT = "la la la la la la la"
TOKENS = 16
GREEDY = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
RANDOM = replace(GREEDY, temperature=1.5, seed=11)


@dataclass
class Answer:
    ids: list[int] = field(default_factory=list[int])
    text: str = ""
    finish: str | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])


@pytest.fixture(scope="module")
def loaded() -> Iterator[Loaded]:
    """The demo model in float32, so that rounding is the same in any batch, with pages for
    about two of its four slots."""
    spec = ModelSpec(
        model_id="/sax/test/smollm2",
        model_path="llama",
        checkpoint=str(demo_model()),
        replicas=1,
        overrides={"DTYPE": '"float32"'},
    )
    config = ModelServerConfig(
        jax_cache_dir=str(COMPILE_CACHE),
        slots=4,
        page_size=8,
        max_context=48,
        kv_cache_bytes=3 << 20,
    )
    made = make_loader(config)(spec, lambda progress: None)
    assert isinstance(made, Loaded)
    with closing(made.runner):
        yield made


class Asked:
    """An engine that answers a few requests to their ends."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._known: dict[int, tuple[Answer, Detokenizer]] = {}
        self._early: list[SequenceUpdate] = []
        self._changed = threading.Condition()
        self.engine = Engine(loaded.runner, self._deliver)

    def answers(
        self, asked: Sequence[SamplingParams], begun: Sequence[int] = (), prompt: str = PROMPT
    ) -> list[Answer]:
        """Answer all at once; `begun`: the tokens that each answer already has."""
        ids = self._loaded.tokenizer.encode(prompt)
        made = [self._submit(sampling, ids, begun) for sampling in asked]
        with self._changed:
            assert self._changed.wait_for(lambda: all(each.finish for each in made), 100)
        return made

    def _submit(self, sampling: SamplingParams, ids: list[int], begun: Sequence[int]) -> Answer:
        check_sampling(sampling, self._loaded.ids)
        request = GenerateRequest(model_id="/sax/test/smollm2", prompt="", sampling=sampling)
        made = make_engine_request(ids, request, self._loaded)
        answer = Answer()
        with self._changed:
            number = self.engine.submit(with_fields(made, answer=tuple(begun)))
            self._known[number] = answer, Detokenizer(self._loaded.tokenizer, ids, sampling)
        return answer

    def _deliver(self, updates: list[SequenceUpdate]) -> None:
        with self._changed:
            for update in updates:
                self._take(update, *self._known[update.sequence])
            self._changed.notify_all()

    def _take(self, update: SequenceUpdate, answer: Answer, detokenizer: Detokenizer) -> None:
        if answer.finish:
            return
        assert update.error is None, update.error
        chunk = detokenizer.push(update.result, update.finish)
        answer.ids += chunk.token_ids
        answer.text += chunk.text
        answer.logprobs += chunk.logprobs
        answer.finish = chunk.finish_reason
        if chunk.finish_reason and update.finish is None:
            self.engine.cancel(update.sequence)


@pytest.fixture(scope="module")
def asked(loaded: Loaded) -> Iterator[Asked]:
    made = Asked(loaded)
    yield made
    made.engine.drain(60)
    made.engine.close()


@dataclass(frozen=True)
class Case:
    """A request with a field, and what its answer must be, beside that without the field."""

    sampling: Callable[[Answer], SamplingParams]  # from the greedy answer
    base: SamplingParams
    shows: Callable[[Answer, Answer], Any]  # the answer without the field and with it: true


def changed(before: Answer, after: Answer) -> bool:
    return before.ids != after.ids


def is_case(base: SamplingParams, shows: Callable[[Answer, Answer], Any], **fields: Any) -> Case:
    return Case(lambda greedy: replace(base, **fields), base, shows)


def from_greedy(
    name: str, value: Callable[[Answer], Any], shows: Callable[[Answer, Answer], Any]
) -> Case:
    return Case(lambda greedy: replace(GREEDY, **{name: value(greedy)}), GREEDY, shows)


def most_often(answer: Answer) -> int:
    return max(answer.ids.count(token) for token in answer.ids)


# For every field: a value, and its effect.
CASES: dict[str, Case] = {
    "temperature": is_case(GREEDY, changed, temperature=1.5, seed=11),
    "top_k": is_case(RANDOM, lambda before, after: most_often(after) > most_often(before), top_k=1),
    "top_p": is_case(
        RANDOM, lambda before, after: most_often(after) > most_often(before), top_p=1e-6
    ),
    "min_p": is_case(RANDOM, lambda before, after: most_often(after) > most_often(before), min_p=1),
    "typical_p": is_case(RANDOM, changed, typical_p=0.05),
    "presence_penalty": is_case(
        replace(GREEDY, allowed_token_ids=tuple(range(32, 42))), changed, presence_penalty=2
    ),
    "frequency_penalty": is_case(
        GREEDY, lambda before, after: most_often(after) < most_often(before), frequency_penalty=2
    ),
    "repetition_penalty": is_case(
        GREEDY, lambda before, after: most_often(after) == 1, repetition_penalty=100
    ),
    "logit_bias": is_case(
        GREEDY, lambda before, after: set(after.ids) == {5}, logit_bias={5: 100.0}
    ),
    "allowed_token_ids": is_case(
        RANDOM, lambda before, after: set(after.ids) <= {7, 8, 9}, allowed_token_ids=(7, 8, 9)
    ),
    "bad_words": from_greedy(
        "bad_words", lambda greedy: (greedy.text[1:3],),
        lambda before, after: before.text[1:3] == "10" and "10" not in after.text
        and after.ids[:2] == before.ids[:2],
    ),
    "seed": is_case(RANDOM, changed, seed=12),
    "max_tokens": is_case(GREEDY, lambda before, after: after.ids == before.ids[:3], max_tokens=3),
    "min_tokens": Case(
        lambda greedy: replace(GREEDY, stop_token_ids=(greedy.ids[0],), min_tokens=6),
        GREEDY,
        lambda before, after: len(after.ids) > 6 and before.ids[0] not in after.ids[:6],
    ),
    "stop": from_greedy(
        "stop", lambda greedy: (greedy.text[3:6],),
        lambda before, after: before.text.startswith(after.text) and len(after.text) <= 3
        and after.finish == "stop",
    ),
    "stop_token_ids": from_greedy(
        "stop_token_ids", lambda greedy: (greedy.ids[0],), lambda before, after: len(after.ids) == 1
    ),
    "stop_sequence": from_greedy(
        "stop_sequence", lambda greedy: tuple(greedy.ids[:2]),
        lambda before, after: after.ids == before.ids[:2] and after.finish == "stop",
    ),
    "ignore_eos": is_case(
        replace(GREEDY, logit_bias={2: 100.0}, ignore_eos=False),
        lambda before, after: (len(before.ids), len(after.ids)) == (1, TOKENS),
        ignore_eos=True,
    ),
    "logprobs": is_case(
        GREEDY, lambda before, after: [len(each.top) for each in after.logprobs] == [3] * TOKENS,
        logprobs=3,
    ),
}  # fmt: skip


# Fields that constrain the whole text have tests of their own.
GRAMMARS = {"json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"}
# As have those of a beam search, which gives several whole answers (test_beam_request).
BEAMS = {"beam_size", "length_penalty", "early_stopping", "tokens_per_beam"}
# And the bound of reasoning, for models that reason (chats/test_divided_answer.py).
THINKING = {"max_thinking_tokens"}


def test_every_field_of_the_table_has_a_case() -> None:
    assert set(CASES) == set(SAMPLING) - GRAMMARS - BEAMS - THINKING


@pytest.fixture(scope="module")
def greedy(asked: Asked) -> Answer:
    return asked.answers([GREEDY])[0]


@pytest.fixture(scope="module")
def alone(asked: Asked, greedy: Answer) -> dict[str, tuple[SamplingParams, Answer]]:
    """Each field's request, and its answer with the engine to itself."""
    made: dict[str, tuple[SamplingParams, Answer]] = {}
    for name, case in CASES.items():
        sampling = case.sampling(greedy)
        made[name] = sampling, asked.answers([sampling])[0]
    return made


@pytest.mark.nightly
def test_a_field_has_its_effect(
    asked: Asked, alone: dict[str, tuple[SamplingParams, Answer]]
) -> None:
    without: dict[str, tuple[Answer, Answer]] = {}
    for name, case in CASES.items():
        before, after = asked.answers([case.base])[0], alone[name][1]
        if not case.shows(before, after):
            without[name] = before, after
    assert without == {}


@pytest.mark.nightly
def test_answers_are_the_same_in_any_batch_and_after_preemptions(
    asked: Asked, alone: dict[str, tuple[SamplingParams, Answer]]
) -> None:
    began = asked.engine.stats().preemptions
    for names in (list(alone), list(alone)[::-1], sorted(alone)):
        together = asked.answers([alone[name][0] for name in names])
        for name, answer in zip(names, together, strict=True):
            assert answer.ids == alone[name][1].ids, name
    assert asked.engine.stats().preemptions > began


@pytest.mark.nightly
def test_another_replica_goes_on_with_the_same_answer(
    asked: Asked, alone: dict[str, tuple[SamplingParams, Answer]]
) -> None:
    for name, (sampling, whole) in alone.items():
        endless = replace(sampling, stop=(), stop_sequence=())
        for begun in (count for count in (1, 5) if count < len(whole.ids)):
            (rest,) = asked.answers([endless], whole.ids[:begun])
            assert rest.ids[: len(whole.ids) - begun] == whole.ids[begun:], name
