"""The state of an answer is the same over draft tokens, and each place has the mask it would have.

Real matchers, so that what is forced, the way to an end and the tokens of a request count.
"""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple

import pytest

from model_server.engine.parts.thinking import BoundedState, ReasoningForm, ThinkingBudget, Thoughts
from model_server.engine.types import GrammarState
from model_server.grammars import drafted_masks, grammar_state
from model_server.grammars.compiler import GrammarCompiler
from model_server.grammars.constraint import Constraint
from tests.each_case import each_case
from tests.model_server.grammars.test_compiler import tokenizer
from tests.model_server.grammars.test_grammar_state import PERSON, allowed_in, of

MOST = 260
CASES = {
    "an object": (of(PERSON), None),
    "forced texts": (of({"enum": ["a long text that is forced " * 9, "another " * 30]}), None),
    "a pattern": (Constraint("regex", "([a-z]+ = [0-9]{2};\n)+"), None),
    "few tokens": (Constraint("regex", "[a-f]+"), tuple(range(0, 3000, 2))),
}


class _Place(NamedTuple):
    """What a state said before a token of an answer."""

    mask: bytes
    forced: tuple[int, ...]
    refused: tuple[int, ...]
    token: int


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, no mask is late."""
    monkeypatch.setattr(drafted_masks, "_LIMIT_S", 30.0)
    for name in ("_DRAFT_S", "_PATIENCE_S", "_MASK_S", "_FIT_S"):
        monkeypatch.setattr(grammar_state, name, 30.0)


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(tokenizer(), tokenizer().vocab_size)


def _mask(state: GrammarState) -> bytes:
    mask = state.mask()
    assert mask is not None
    return mask


def _told(state: GrammarState, rng: random.Random) -> list[_Place]:
    """An answer one token after the other, drawn evenly from those allowed."""
    places: list[_Place] = []
    while len(places) < MOST and not state.finished:
        mask, forced, refused = _mask(state), state.forced(), list[int]()
        while not state.fits(token := rng.choice(allowed_in(_mask(state)))):
            refused.append(token)
        if token in tokenizer().eos_ids:
            break
        state.accept(token)
        places.append(_Place(mask, forced, tuple(refused), token))
    return places


def _retold(state: GrammarState, places: list[_Place], rng: random.Random) -> int:
    """Tell it again over draft tokens, some of them wrong; returns the masks behind right ones."""
    masks, left = 0, 0
    tokens = [place.token for place in places]
    for at, place in enumerate(places):
        if not left:
            right = tokens[at : at + rng.randint(1, 9)]
            wrong = [rng.choice(tokens)] if rng.random() < 0.4 else []
            count = state.draft((*right, *wrong))
            for ahead in range(1, min(count, len(right), len(places) - at - 1) + 1):
                if (mask := state.drafted(ahead)) is None:
                    break
                assert mask == places[at + ahead].mask
                masks += 1
            left = rng.randint(1, 1 + count)
        left -= 1
        assert _mask(state) == place.mask
        assert state.forced() == place.forced
        for token in place.refused:
            assert not state.fits(token)
            state.mask()
        assert state.fits(place.token)
        state.accept(place.token)
    return masks


@each_case("name", CASES)
def test_masks_behind_draft_tokens_are_those_of_the_answer(
    compiler: GrammarCompiler, name: str
) -> None:
    constraint, allowed = CASES[name]
    grammar = asyncio.run(compiler.compile(constraint))
    for seed in range(2):
        places = _told(grammar.begin((), allowed, MOST), random.Random(seed))
        again = grammar.begin((), allowed, MOST)
        masks = _retold(again, places, random.Random(seed))
        # Near its end an answer is followed closely, and not drafted.
        assert masks > (min(len(places), MOST - 64) - 20) / 3, seed


def test_an_answer_is_not_drafted_past_the_place_where_its_reasoning_must_end(
    compiler: GrammarCompiler,
) -> None:
    grammar = asyncio.run(compiler.compile(Constraint("regex", "[a-z ]+!")))
    word, ends = tokenizer().encode_continuation("a"), tokenizer().encode_continuation("!")
    form = ReasoningForm(b"?", b"!", True, tokenizer().token_bytes)
    budget = ThinkingBudget(3, tuple(ends), form)
    state = BoundedState(grammar.begin((), None, MOST), Thoughts(budget))
    state.draft((*word, *ends))  # which would close it
    assert state.draft(tuple(word * 8)) == 2
    for count in (1, 2):
        assert word[0] in allowed_in(state.drafted(count) or b"")
    for _ in range(3):
        assert word[0] in allowed_in(_mask(state))
        state.accept(word[0])
    assert state.draft(tuple(word)) == 0
    assert allowed_in(_mask(state)) == list(ends)
