"""Every field is checked by name, and what passes reaches the engine unchanged."""

import math
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace as with_fields

from model_server.engine.engine import EngineRequest
from model_server.services.lm_service import sample_seeds
from model_server.serving.chats.rendered_chat import RenderedChat
from model_server.serving.engine_request import make_engine_request, of_caller, prompt_ids
from model_server.serving.handler import score_engine_request
from model_server.serving.request_checks import (
    check_asker,
    check_device_sampling,
    check_reply,
    check_sampling,
)
from model_server.text.tokenizer import ByteTokenizer
from sax.auth.acl import ANYONE, Principal
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.sampling import DEVICE_FIELDS
from sax.types import GenerateRequest, ModelSpec, ReplyOptions, SamplingParams
from tests.model_server.fake_model import LIMITS, FakeModels
from tests.model_server.refusals import refusal

MODEL = "/sax/test/fake"
SPEC = ModelSpec(model_id=MODEL, model_path="fake", checkpoint="None", replicas=1)
LOADED = FakeModels()(SPEC, lambda progress: None)


def test_a_field_out_of_range_is_refused_by_name() -> None:
    outside: dict[str, tuple[object, ...]] = {
        "temperature": (-0.1, math.nan, math.inf),
        "top_p": (-0.1, 1.1, math.nan),
        "top_k": (-1,),
        "seed": (-1, 2**64),
        "max_tokens": (-1,),
        "logprobs": (-1, 21),
        "stop": (("",), ("x",) * 17),
        "stop_token_ids": ((256,), (-1,)),
    }
    for field, values in outside.items():
        for value in values:
            sampling = replace(SamplingParams(), **{field: value})
            told = refusal(check_sampling, sampling, vocab_size=256)
            assert (told.kind, told.param) == (InvalidRequest, field), (field, value)
            assert field in told.text


def test_the_ends_of_every_range_pass() -> None:
    low = SamplingParams(
        temperature=0.0, top_p=0.0, top_k=0, seed=0, max_tokens=1, logprobs=0, stop_token_ids=(0,)
    )
    high = SamplingParams(top_p=1.0, seed=2**64 - 1, logprobs=20, stop=("x",) * 16)
    check_sampling(low, 256)
    check_sampling(high, 256)


def test_a_prompt_is_text_ids_or_a_chat() -> None:
    assert prompt_ids("hi", LOADED) == [104, 105]
    assert prompt_ids((1, 2), LOADED) == [1, 2]
    chat = prompt_ids(RenderedChat("user: hi\nassistant: "), LOADED)
    assert bytes(chat) == b"user: hi\nassistant: "


def test_an_empty_prompt_is_refused() -> None:
    for prompt in ("", ()):
        with pytest.raises(InvalidRequest, match="empty"):
            prompt_ids(prompt, LOADED)


def test_an_answer_between_two_texts_ends_with_the_ends_of_such_answers() -> None:
    """Bytes are its marks."""

    class Between(ByteTokenizer):
        middle_ids = (1, 2, 3)
        marks: ClassVar = {"<EOT>": 4}

        def encode_chat(self, rendered: str) -> list[int]:
            return [self.marks.get(rendered, 0)]

        def token_text(self, token_id: int) -> str:
            return "<EOT>" if token_id == 4 else super().token_text(token_id)

    loaded = replace(LOADED, tokenizer=Between(256))
    request = GenerateRequest(model_id=MODEL, prompt="hi", reply=ReplyOptions(suffix="}"))
    ids = prompt_ids(request.prompt, loaded, request)
    assert ids == [1, *b"hi", 2, *b"}", 3]
    assert make_engine_request(ids, request, loaded).stop_ids == {4}
    assert prompt_ids("", loaded, replace(request, prompt="")) == [1, 2, *b"}", 3]
    with pytest.raises(UnsupportedParameter, match="filling in the middle"):
        prompt_ids(request.prompt, LOADED, request)


def test_what_a_text_behind_the_answer_excludes_is_refused_by_name() -> None:
    request = GenerateRequest(model_id=MODEL, prompt="hi", reply=ReplyOptions(suffix="}"))
    check_reply(request, LOADED)
    refused = {
        "suffix": replace(request, prompt=(1, 2)),
        "echo": replace(request, reply=ReplyOptions(suffix="}", echo=True)),
        "prompt_logprobs": replace(request, reply=ReplyOptions(suffix="}", prompt_logprobs=0)),
        "truncate_prompt_tokens": replace(
            request, reply=ReplyOptions(suffix="}", truncate_prompt_tokens=-1)
        ),
    }
    for param, each in refused.items():
        assert refusal(check_reply, each, LOADED).param == param


def test_a_token_that_the_model_has_no_row_for_is_refused() -> None:
    for prompt in ("hi", (1, 104), RenderedChat("hi")):
        assert prompt_ids(prompt, replace(LOADED, vocab=200))
        with pytest.raises(InvalidRequest, match=r"no embedding for: its ids go to 103"):
            prompt_ids(prompt, replace(LOADED, vocab=104))


def test_an_id_outside_the_vocabulary_is_refused_with_both_numbers() -> None:
    with pytest.raises(InvalidRequest, match="token 256: give ids from 0 to 255"):
        prompt_ids((1, 256), LOADED)


def submission_of(sampling: SamplingParams) -> EngineRequest:
    return make_engine_request(
        [1, 2], GenerateRequest(model_id=MODEL, prompt="", sampling=sampling), LOADED
    )


def test_without_a_limit_the_answer_may_fill_the_context() -> None:
    assert submission_of(SamplingParams()).max_tokens == LIMITS.max_context - 2
    assert submission_of(SamplingParams(max_tokens=5)).max_tokens == 5


def test_without_a_seed_every_request_draws_its_own() -> None:
    assert submission_of(SamplingParams(seed=7)).sampling.seed == 7
    seeds = {submission_of(SamplingParams()).sampling.seed for _ in range(8)}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_a_nucleus_of_no_probability_is_the_likeliest_token() -> None:
    made = submission_of(SamplingParams(temperature=0.8, top_p=0)).sampling
    assert (made.temperature, made.top_p) == (0, 1)


class EndsAt7(ByteTokenizer):
    """A tokenizer whose model ends its answers with token 7."""

    eos_ids: frozenset[int] = frozenset({7})


def test_the_end_token_stops_unless_it_is_to_be_ignored() -> None:
    ending = replace(LOADED, tokenizer=EndsAt7(256))
    sampling = SamplingParams(stop_token_ids=(9,))
    for ignore, expected in ((False, {7, 9}), (True, {9})):
        request = GenerateRequest(
            model_id=MODEL, prompt="", sampling=replace(sampling, ignore_eos=ignore)
        )
        assert make_engine_request([1], request, ending).stop_ids == expected


def test_a_score_runs_the_suffix_after_the_prefix_and_generates_nothing() -> None:
    engine_request = score_engine_request([1, 2], [3])
    assert (engine_request.prompt, engine_request.score_from) == ((1, 2, 3), 2)


def test_samples_have_different_seeds_and_the_first_is_the_callers() -> None:
    seeds = sample_seeds(5, 4)
    assert seeds[0] == 5
    assert len(set(seeds)) == 4
    assert seeds == sample_seeds(5, 4)
    assert sample_seeds(None, 1) != sample_seeds(None, 1)
    assert all(0 <= seed < 2**64 for seed in sample_seeds(2**64 - 1, 4))


def test_a_turn_is_the_principals_and_an_account_that_it_names_only_divides_it() -> None:
    scored = score_engine_request([1], [2])
    verified = of_caller(scored, Principal("gateway"), "10.0.0.7")
    assert (verified.account, verified.member) == ("gateway", "10.0.0.7")
    anonymous = of_caller(scored, ANYONE, "10.0.0.7")
    assert (anonymous.account, anonymous.member) == ("10.0.0.7", "")


def test_a_priority_an_account_or_a_time_limit_out_of_range_is_refused_by_name() -> None:
    outside = [("priority", 1001), ("account", "a" * 257), ("timeout", 0.0), ("timeout", 1e9)]
    for field, value in outside:
        name = "timeout_s" if field == "timeout" else field
        asked: dict[str, Any] = {"model_id": "m", "prompt": "hi", name: value}
        told = refusal(check_asker, GenerateRequest(**asked))
        assert (told.kind, told.param) == (InvalidRequest, field), value
        assert told.text.startswith((f"{field} is ", f"{field} has ")), told.text


def test_fields_that_cannot_be_honoured_together_are_refused() -> None:
    cases = [
        (SamplingParams(min_tokens=5, max_tokens=4), "min_tokens", "min_tokens is 5 and max_tok"),
        (SamplingParams(min_tokens=10_000), "min_tokens", "has room for"),
        (
            SamplingParams(allowed_token_ids=(9,), stop_token_ids=(9, 8), min_tokens=1),
            "allowed_token_ids",
            "that bad_words and min_tokens forbid",
        ),
        (
            SamplingParams(allowed_token_ids=(97, 98), bad_words=("a", "xb")),
            "allowed_token_ids",
            "that bad_words and min_tokens forbid",
        ),
        (SamplingParams(bad_words=("x" * 17,)), "bad_words", "at most 16"),
        (SamplingParams(logit_bias={256: 1.0}), "logit_bias", "token 256: give ids from 0 to 255"),
        (SamplingParams(logit_bias={5: 101.0}), "logit_bias", "101.0: give a number per token id"),
        (SamplingParams(allowed_token_ids=(256,)), "allowed_token_ids", "token 256"),
    ]

    def ask(sampling: SamplingParams) -> EngineRequest:
        check_sampling(sampling, 256)
        return submission_of(sampling)

    for sampling, param, said in cases:
        told = refusal(ask, sampling)
        assert (told.kind, told.param) == (InvalidRequest, param), said
        assert said in told.text
    assert "17 tokens" in refusal(ask, SamplingParams(bad_words=("x" * 17,))).text


def test_every_field_of_a_row_reaches_the_device() -> None:
    made = submission_of(
        SamplingParams(
            **{name: 0.5 for name in DEVICE_FIELDS if name != "top_k"},
            logit_bias={3: 2.0},
            allowed_token_ids=(1, 2),
            min_tokens=4,
            stop_token_ids=(9, 7),
        )
    ).sampling
    assert all(getattr(made, name) == 0.5 for name in DEVICE_FIELDS if name != "top_k")
    assert (made.logit_bias, made.allowed) == (((3, 2.0),), (1, 2))
    assert (made.min_tokens, made.ends) == (4, (7, 9))


def test_a_bad_word_is_barred_with_and_without_a_space_before_it() -> None:
    made = submission_of(SamplingParams(bad_words=("ab", " ab", "c"))).sampling
    assert made.bad_words == ((97, 98), (32, 97, 98), (99,), (32, 99))


def test_what_another_server_sends_is_checked_again() -> None:
    good = submission_of(SamplingParams(bad_words=("ab",), allowed_token_ids=(5,))).sampling
    check_device_sampling(good, 256)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"bad_words": ((),)}, "bad_words"),
        ({"bad_words": ((1,) * 17,)}, "bad_words"),
        ({"bad_words": ((256,),)}, "bad_words"),
        ({"bad_words": ((1,),) * 129}, "bad_words"),
        ({"allowed": (300,)}, "allowed_token_ids"),
        ({"ends": (1,) * 129}, "ends"),
        ({"logit_bias": ((300, 1.0),)}, "logit_bias"),
        ({"min_p": 2.0}, "min_p"),
    ]
    for changes, param in cases:
        told = refusal(check_device_sampling, with_fields(good, **changes), 256)
        assert (told.kind, told.param) == (InvalidRequest, param), changes
