"""Constraints with a real vocabulary: every answer that the masks allow is what was asked for."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from contextlib import closing
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model_server.checkpoints.opening import open_checkpoint
from model_server.grammars import compiler as compiler_module
from model_server.grammars.compiler import (
    AnswerVerdict,
    ConstraintReader,
    GrammarCompiler,
    constraint_reader,
)
from model_server.grammars.constraint import Constraint, constraint_of
from model_server.grammars.grammar_state import MatcherState
from model_server.grammars.reading_frames import ConstraintAnswer
from model_server.text.tokenizer import ByteTokenizer, HfTokenizer, Tokenizer
from sax.errors import InvalidRequest, SaxError, UnsupportedParameter
from sax.types import SamplingParams
from tests.demo_model import demo_model
from tests.each_case import each_case
from tests.model_server.checkpoints.tiny_folder import tokenizer_json
from tests.model_server.grammars.schemas import SCHEMAS

MOST = 4000  # tokens of an answer


@cache
def tokenizer() -> Tokenizer:
    with closing(open_checkpoint(str(demo_model()))) as checkpoint:
        made = checkpoint.tokenizer()
    return made


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(tokenizer(), tokenizer().vocab_size)


def allowed_by(guide: MatcherState) -> list[int]:
    """The tokens that may come next, once the mask is there."""
    while (mask := guide.mask()) is None:
        pass
    return np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")).tolist()


def walk(compiler: GrammarCompiler, constraint: Constraint, seed: int) -> str:
    """The text of an answer whose tokens are drawn evenly from those allowed, short ones first."""
    guide = asyncio.run(compiler.compile(constraint)).begin((), None, None)
    rng, tokens, ends = random.Random(seed), list[int](), tokenizer().eos_ids
    while len(tokens) < MOST:
        allowed = allowed_by(guide)
        if ends & set(allowed) and rng.random() < 0.5:
            break
        allowed = [token for token in allowed if token not in ends]
        closing_ones = [token for token in allowed if token in closers()]
        token = rng.choice(closing_ones if closing_ones and rng.random() < 0.4 else allowed)
        tokens.append(token)
        guide.accept(token)
        if guide.finished:
            break
    assert len(tokens) < MOST, "it did not end"
    return b"".join(map(tokenizer().token_bytes, tokens)).decode()


@cache
def closers() -> frozenset[int]:
    """Tokens that end a value."""
    texts = (b'"', b"}", b"]", b'"}', b'"]', b"0")
    every = range(tokenizer().vocab_size)
    return frozenset(token for token in every if tokenizer().token_bytes(token).strip() in texts)


@pytest.mark.extended
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(schema=SCHEMAS, seed=st.integers(0, 2**32))
def test_every_answer_under_a_random_schema_parses_and_is_valid(
    compiler: GrammarCompiler, schema: dict[str, Any], seed: int
) -> None:
    text = walk(compiler, Constraint("json_schema", json.dumps(schema)), seed)
    jsonschema.validate(json.loads(text), schema)


@pytest.mark.extended
@each_case("seed", range(3))
@each_case(
    "constraint, pattern",
    [
        (Constraint("regex", r"[0-9]{3}-[a-f]+"), r"[0-9]{3}-[a-f]+"),
        (Constraint("choice", ("yes", 'no "never"', "per\u00f2")), 'yes|no "never"|per\u00f2'),
        (Constraint("grammar", 'start: "a" B+\nB: /[xy]/ "z"'), "a([xy]z)+"),
        (Constraint("grammar", 'root ::= ("yes" | "no") num\nnum ::= [0-9]+'), "(yes|no)[0-9]+"),
        (Constraint("json_object", value=True), r"(?s)\{.*\}"),
    ],
)
def test_answers_match_what_each_kind_of_constraint_says(
    compiler: GrammarCompiler, constraint: Constraint, pattern: str, seed: int
) -> None:
    assert re.fullmatch(pattern, walk(compiler, constraint, seed))


def test_a_structural_tag_forces_a_call_with_valid_arguments(compiler: GrammarCompiler) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tag = {
        "structures": [
            {
                "begin": "<call=f>",
                "schema": {**schema, "additionalProperties": False},
                "end": "</call>",
            }
        ],
        "triggers": ["<call="],
        "at_least_one": True,
    }
    compiled = asyncio.run(compiler.compile(Constraint("structural_tag", json.dumps(tag))))
    guide = compiled.begin(tokenizer().encode_continuation('Well: <call=f>{"n": '), None, None)
    allowed = allowed_by(guide)
    first = {tokenizer().token_bytes(token)[:1] for token in allowed}
    assert first <= {bytes([byte]) for byte in b"-0123456789 \n\t"}
    assert not tokenizer().eos_ids & set(allowed)


@each_case(
    "constraint",
    [
        Constraint("json_schema", "{"),
        Constraint("json_schema", '"text"'),
        Constraint("json_schema", '{"type": "nonsense"}'),
        Constraint("json_schema", "[" * 30_000),
        Constraint("json_schema", "false"),
        Constraint("json_schema", '{"x-guidance": {"lenient": true}}'),
        Constraint("json_schema", '{"$ref": "#"}'),
        Constraint("regex", "("),
        Constraint("grammar", "start: missing"),
        Constraint("grammar", "root ::= " + "(" * 30_000),
        Constraint("structural_tag", "[]"),
        Constraint("structural_tag", '{"structures": [{"begin": "a"}], "triggers": ["b"]}'),
    ],
)
def test_what_cannot_be_compiled_is_refused_by_name(
    compiler: GrammarCompiler, constraint: Constraint
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        asyncio.run(compiler.compile(constraint))
    assert refused.value.param == constraint.field


def test_a_schema_may_ask_for_json_without_white_space(compiler: GrammarCompiler) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    compact = {
        **schema,
        "additionalProperties": False,
        "x-guidance": {"whitespace_flexible": False},
    }
    text = walk(compiler, Constraint("json_schema", json.dumps(compact)), 3)
    assert text == json.dumps(json.loads(text), separators=(",", ":"))


def test_the_same_constraint_is_compiled_once(compiler: GrammarCompiler) -> None:
    constraint = Constraint("regex", "[a-z]{1,9}")
    first = asyncio.run(compiler.compile(constraint))
    assert asyncio.run(compiler.compile(constraint)) is first


def test_of_more_constraints_than_are_kept_the_one_unused_for_longest_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiler_module, "_KEPT", 2)
    compiler = GrammarCompiler(tokenizer(), tokenizer().vocab_size)
    a, b, c = (constraint_of(SamplingParams(regex=text)) for text in "abc")

    async def made(asked: Constraint | None) -> object:
        assert asked is not None
        return await compiler.compile(asked)

    async def compiled() -> None:
        first, second = await made(a), await made(b)
        assert await made(a) is first  # now b is the one
        await made(c)
        assert await made(a) is first
        assert await made(b) is not second

    asyncio.run(compiled())


def test_allowed_token_ids_and_a_grammar_hold_together(compiler: GrammarCompiler) -> None:
    (letter,) = tokenizer().encode_continuation("a")
    compiled = asyncio.run(compiler.compile(Constraint("regex", "[a-z]{1,9}")))
    assert allowed_by(compiled.begin((), (letter,), None)) == [letter]
    (digit,) = tokenizer().encode_continuation("7")
    with pytest.raises(InvalidRequest, match="allowed_token_ids"):
        allowed_by(compiled.begin((), (digit,), None))


@each_case(
    "params, param",
    [
        (SamplingParams(regex="a", json_object=True), "regex"),
        (SamplingParams(regex="a", ignore_eos=True), "ignore_eos"),
        (SamplingParams(json_object=True, min_tokens=3), "min_tokens"),
    ],
)
def test_contradictions_are_refused(params: SamplingParams, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        constraint_of(params)
    assert refused.value.param == param


def test_a_model_without_an_end_token_says_so() -> None:
    compiler = GrammarCompiler(ByteTokenizer(300), 300)
    with pytest.raises(SaxError) as refused:
        asyncio.run(compiler.compile(Constraint("regex", "a")))
    assert isinstance(refused.value, UnsupportedParameter)


class _Read(HfTokenizer):
    """Counts the tokens that somebody looked at."""

    read = 0

    def token_bytes(self, token_id: int) -> bytes:
        self.read += 1
        return super().token_bytes(token_id)


def test_the_vocabulary_is_read_when_the_first_constraint_comes_or_nothing_else_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokens = _Read(tokenizer_json(), eos=[2])
    monkeypatch.setattr(compiler_module, "_QUIET_S", 3600.0)
    compiler = GrammarCompiler(tokens, tokens.vocab_size)
    assert tokens.read == len(tokens.control_ids)
    asyncio.run(compiler.compile(Constraint("regex", "a")))
    assert tokens.read == len(tokens.control_ids) + tokens.vocab_size
    asyncio.run(compiler.compile(Constraint("regex", "b")))
    assert tokens.read == len(tokens.control_ids) + tokens.vocab_size, "once"
    monkeypatch.setattr(compiler_module, "_QUIET_S", 0.0)
    quiet = GrammarCompiler(tokens, tokens.vocab_size)
    while quiet.reading is None:
        time.sleep(0.01)
    assert quiet.reading.result().tokenizer.vocab_size == tokens.vocab_size


@pytest.mark.parametrize("field", ["json_schema", "regex", "choice"])
def test_an_answer_that_was_begun_elsewhere_is_followed_from_any_token(
    compiler: GrammarCompiler, field: str
) -> None:
    said: dict[str, Any] = {
        "json_schema": '{"type": "object", "properties": {"a": {"type": "integer"}}}',
        "regex": "[a-c]{3,9}x",
        "choice": ("yes, it is", "no"),
    }
    constraint = constraint_of(SamplingParams(**{field: said[field]}))
    assert constraint is not None
    compiled = asyncio.run(compiler.compile(constraint))
    guide = compiled.begin((), None, None)
    rng, tokens, ends = random.Random(1), list[int](), tokenizer().eos_ids
    while not guide.finished and len(tokens) < 20:
        mask = allowed_by(guide)
        begun = compiled.follow(tokens)
        assert not begun.complete
        assert allowed_by(begun.begin(tokens, None, None)) == mask
        if tokens:  # of which another replica had one less
            earlier = compiled.follow(tokens[:-1])
            assert allowed_by(earlier.begin(tokens, None, None)) == mask
        token = rng.choice([each for each in mask if each not in ends] or [-1])
        if token < 0:
            break
        tokens.append(token)
        guide.accept(token)
    assert compiled.follow(tokens).complete == guide.finished


def test_an_answer_that_a_constraint_does_not_allow_cannot_go_on(
    compiler: GrammarCompiler,
) -> None:
    constraint = constraint_of(SamplingParams(choice=("yes", "no")))
    assert constraint is not None
    compiled = asyncio.run(compiler.compile(constraint))
    with pytest.raises(InvalidRequest, match="choice cannot be kept to"):
        compiled.follow(tokenizer().encode_continuation("perhaps"))


CHAIN = [f"a{n}: a{n + 1}" for n in range(3000)]
DEEP_GRAMMAR = "\n".join(["start: a0", *CHAIN, 'a3000: "x"', ""])
ITEMS = {f"c{n}": {"items": {"$ref": f"#/c{n + 1}"}} for n in range(3000)}
DEEP_SCHEMA = json.dumps({**ITEMS, "c3000": {"type": "string"}, "$ref": "#/c0"})
GOOD = Constraint("regex", "[a-z]{1,9}")


def read(*constraints: Constraint) -> list[ConstraintAnswer | BaseException]:
    async def every() -> list[ConstraintAnswer | BaseException]:
        reading = (constraint_reader().read(each, {"<|end|>": 300}) for each in constraints)
        return await asyncio.gather(*reading, return_exceptions=True)

    return asyncio.run(every())


@each_case(
    "constraint",
    [Constraint("grammar", DEEP_GRAMMAR), Constraint("json_schema", DEEP_SCHEMA)],
)
def test_what_overflows_the_stack_is_refused_and_the_next_one_read(constraint: Constraint) -> None:
    refused, good = read(constraint, GOOD)
    assert isinstance(refused, InvalidRequest)
    assert refused.param == constraint.field
    assert "simplify it" in refused.text
    assert isinstance(good, ConstraintAnswer)
    assert (good.kind, good.partly) == ("grammar", False)


SET = '{"type": "array", "items": {"type": "integer"}, "uniqueItems": true}'
SLOW = '{"not": {"pattern": "^(a|a)*$"}}'


def test_a_schema_that_a_grammar_holds_in_part_is_told_and_its_answers_are_checked() -> None:
    one_of = '{"oneOf": [{"type": "integer"}, {"type": "number"}]}'
    for schema in (SET, one_of):
        (told,) = read(Constraint("json_schema", schema))
        assert isinstance(told, ConstraintAnswer)
        assert told.partly, schema

    async def verdicts(*asked: tuple[str, str]) -> list[AnswerVerdict]:
        return await asyncio.gather(*(constraint_reader().check(*each) for each in asked))

    told = asyncio.run(
        verdicts(
            (SET, "[1, 2]"),
            (SET, "[1, 1]"),
            (one_of, "1"),
            (SET, "[1"),
            ('{"$ref": "http://localhost/schema"}', "1"),
            ('{"not": {"pattern": "("}}', '"a"'),
            (SET, "[" * 9999 + "]" * 9999),
        )
    )
    kinds = ["kept", "broken", "broken", "broken", "unchecked", "unchecked", "broken"]
    assert [each.kind for each in told[:6]] == kinds[:6]
    assert told[1].why == "$: [1, 1] has non-unique elements"
    assert told[6].kind in ("broken", "unchecked")


@pytest.mark.extended
def test_a_check_that_takes_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model_server.grammars.compiler.SLOW_S", 0.5)
    reader = ConstraintReader()

    async def asked() -> list[AnswerVerdict]:
        return [await reader.check(SLOW, json.dumps("a" * 40 + "b")), await reader.check(SET, "[]")]

    slow, kept = asyncio.run(asked())
    assert (slow.kind, kept.kind) == ("unchecked", "kept")
    assert "could not be checked" in slow.why


@pytest.mark.extended
def test_what_takes_for_ever_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model_server.grammars.compiler.SLOW_S", 1.0)
    reader, beats = ConstraintReader(), list[float]()

    async def beat() -> None:
        while True:
            beats.append(time.monotonic())
            await asyncio.sleep(0.001)

    async def attack() -> None:
        beating = asyncio.create_task(beat())
        lines = (Constraint("grammar", "\n" * (65_536 + n)) for n in range(3))
        endless = [asyncio.create_task(reader.read(each, {})) for each in lines]
        await asyncio.sleep(0)
        assert await reader.read(GOOD, {})
        assert not all(each.done() for each in endless), "it waited for all of them"
        for each in endless:
            with pytest.raises(SaxError):
                await each
        beating.cancel()

    asyncio.run(attack())
    assert len(beats) > 100, "the event loop went on"


@each_case("text", ["\ud800", "\n" * 3000, "[" * 30_000])
def test_what_is_no_grammar_is_refused(text: str) -> None:
    (refused,) = read(Constraint("grammar", text))
    assert isinstance(refused, InvalidRequest)
    assert refused.param == "grammar"


def test_control_tokens_may_be_named() -> None:
    named, unknown = read(
        Constraint("grammar", "start: <|end|>"), Constraint("grammar", "start: <|other|>")
    )
    assert isinstance(named, ConstraintAnswer)
    assert isinstance(unknown, InvalidRequest)
