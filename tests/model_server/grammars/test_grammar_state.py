"""Answers end complete within the tokens that they may have, whatever is chosen on the way."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
from functools import cache
from typing import Any, cast

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from model_server.grammars import grammar_state
from model_server.grammars.closing import Closings
from model_server.grammars.compiler import GrammarCompiler, ll_tokenizer
from model_server.grammars.constraint import Constraint, read_constraint
from model_server.grammars.grammar_state import (
    CompiledGrammar,
    GrammarStateCounts,
    MatcherState,
    ShortWay,
)
from sax.errors import InvalidRequest
from tests.each_case import each_case
from tests.model_server.grammars.schemas import SCHEMAS
from tests.model_server.grammars.test_compiler import tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "friends": {"type": "array", "items": {"$ref": "#"}},
        "color": {"enum": ["red", "reddish", "green"]},
    },
    "required": ["name", "friends", "color"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(tokenizer(), tokenizer().vocab_size)


@cache
def texts() -> list[bytes]:
    return [tokenizer().token_bytes(token) for token in range(tokenizer().vocab_size)]


@cache
def known() -> LLTokenizer:
    made = ll_tokenizer(tokenizer(), texts())
    assert made is not None
    return made


@cache
def closings() -> Closings:
    return Closings(known(), texts())


def matcher_of(constraint: Constraint) -> LLMatcher:
    return LLMatcher(known(), read_constraint(constraint, {}).grammar, log_level=0)


def way_from(constraint: Constraint, begun: str = "", room: int = 400) -> str | None:
    """The text of the way that is found to the end of an answer that begins like this."""
    matcher = matcher_of(constraint)
    assert matcher.consume_tokens(tokenizer().encode_continuation(begun))
    way = closings().find(matcher, room, 5.0)
    return None if way is None else b"".join(texts()[token] for token in way).decode()


def walk(compiler: GrammarCompiler, constraint: Constraint, most: int, seed: int) -> str:
    """The text of an answer of at most this many tokens, drawn evenly from those allowed."""
    guide = asyncio.run(compiler.compile(constraint)).begin((), None, most)
    rng, tokens, ends = random.Random(seed), list[int](), tokenizer().eos_ids
    while len(tokens) < most and not guide.finished:
        if (mask := guide.mask()) is None:
            continue  # the machine is busy
        token = rng.choice(allowed_in(mask))
        if token in ends:
            break
        if guide.fits(token):
            tokens.append(token)
            guide.accept(token)
        else:
            again = guide.mask()
            assert again, "the mask has been there"
            assert token not in allowed_in(again), "what was refused is not allowed again"
    return b"".join(texts()[token] for token in tokens).decode(errors="replace")


def allowed_in(mask: bytes) -> list[int]:
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    return np.flatnonzero(bits).tolist()


def of(schema: Any) -> Constraint:
    return Constraint("json_schema", json.dumps(schema))


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("most", [24, 40, 75])
def test_an_answer_closes_all_that_it_opened_before_its_last_token(
    compiler: GrammarCompiler, most: int, seed: int
) -> None:
    jsonschema.validate(json.loads(walk(compiler, of(PERSON), most, seed)), PERSON)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(schema=SCHEMAS, seed=st.integers(0, 2**32), spare=st.integers(0, 12))
def test_answers_under_random_schemas_are_valid_at_the_shortest_length_and_a_few_tokens_more(
    compiler: GrammarCompiler, schema: dict[str, Any], seed: int, spare: int
) -> None:
    least = closings().find(matcher_of(of(schema)), 400, 5.0)
    assert least is not None
    text = walk(compiler, of(schema), len(least) + spare, seed)
    jsonschema.validate(json.loads(text), schema)


@each_case("seed", range(3))
@each_case("pattern", [r"[a-z]+@[a-z]+\.com", r"[a-z]{20}x", r"(ab|c)*d[0-9]{3}"])
def test_an_answer_that_a_pattern_says_is_completed_too(
    compiler: GrammarCompiler, pattern: str, seed: int
) -> None:
    assert re.fullmatch(pattern, walk(compiler, Constraint("regex", pattern), 14, seed))


@each_case(
    "begun, end",
    [
        ('{"name": "Jo', '","friends":[],"color":"red"}'),
        ('{"name": "Jo", "age": 3', ',"friends":[],"color":"red"}'),
        ('{"name":"Jo","friends":[{"name":"', '","friends":[],"color":"red"}],"color":"red"}'),
    ],
)
def test_a_way_as_short_as_one_that_adds_only_what_is_required_is_found(
    begun: str, end: str
) -> None:
    way = way_from(of(PERSON), begun, room=len(tokenizer().encode_continuation(end)))
    assert way is not None
    jsonschema.validate(json.loads(begun + way), PERSON)


@pytest.mark.extended
def test_no_way_is_found_where_none_is_as_short() -> None:
    assert way_from(of(PERSON), room=5) is None
    endless = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string", "minLength": 2000}}}
    assert way_from(of(endless), room=20) is None


ENDLESSLY = Constraint(
    "json_schema", json.dumps({"type": "array", "minItems": 400, "items": {"type": "string"}})
)


class _Counted(Closings):
    """Counts its searches."""

    searches = 0

    def find(self, *parts: Any, **more: Any) -> list[int] | None:
        self.searches += 1
        return super().find(*parts, **more)


def test_an_answer_that_cannot_end_in_time_is_not_searched_for_at_every_token() -> None:
    counted = _Counted(known(), texts())
    way, matcher = ShortWay(counted, 60, None), matcher_of(ENDLESSLY)
    for token in tokenizer().encode_continuation('["a","b","c","d","e","f","g","h"'):
        way.look(matcher)
        assert way.expects(token)
        assert matcher.consume_token(token)
        way.advance()
    assert way.near
    assert counted.searches <= 2


class _Stuck(Closings):
    """Searches until it is let go."""

    def __init__(self) -> None:
        super().__init__(known(), texts())
        self.let_go = threading.Event()

    def find(self, *_: Any, **__: Any) -> list[int] | None:
        assert self.let_go.wait(60)
        return None


@pytest.mark.extended
def test_a_row_whose_way_is_still_searched_for_is_late_and_then_goes_on_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, limit_s in (("_PATIENCE_S", 0.01), ("_MASK_S", 0.5), ("_LOOK_S", 1.0)):
        monkeypatch.setattr(grammar_state, name, limit_s)
    stuck, counts = _Stuck(), GrammarStateCounts()
    grammar = CompiledGrammar(
        matcher_of(ENDLESSLY), "json_schema", tokenizer().vocab_size, counts, stuck
    )
    guide = grammar.begin((), None, 60)
    masks = []
    while not any(masks):
        masks.append(guide.mask())
    assert len(masks) > 2
    assert counts.unclosed == 1
    guide.accept(tokenizer().encode_continuation("[")[0])
    assert guide.mask()
    stuck.let_go.set()


class _SlowMatcher:
    """Allows every token, once it is let go; until then its thread waits, or computes."""

    def __init__(self, *, computes: bool) -> None:
        self.let_go = threading.Event()
        self._computes = computes

    def compute_bitmask(self) -> bytes:
        while not self.let_go.wait(0 if self._computes else 0.001):
            pass
        return b"\xff" * 4

    def is_error(self) -> bool:
        return False

    def is_stopped(self) -> bool:
        return False


def test_only_processor_time_makes_a_mask_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row whose thread a busy machine lets wait is late; one that computes long is refused."""
    for name, limit_s in (("_PATIENCE_S", 0.01), ("_MASK_S", 0.05), ("_LOOK_S", 0.05)):
        monkeypatch.setattr(grammar_state, name, limit_s)

    def begun(matcher: _SlowMatcher) -> MatcherState:
        given, some = cast("LLMatcher", matcher), np.full(4, 255, np.uint8)
        return MatcherState(given, "grammar", 4, GrammarStateCounts(), some, (), None)

    waiting, computing = _SlowMatcher(computes=False), _SlowMatcher(computes=True)
    state = begun(waiting)
    assert [state.mask() for _ in range(20)] == [None] * 20
    waiting.let_go.set()
    while (mask := state.mask()) is None:
        pass
    assert mask == b"\xff" * 4
    state = begun(computing)
    with pytest.raises(InvalidRequest, match="took longer than"):
        any(state.mask() for _ in range(1000))
    computing.let_go.set()
