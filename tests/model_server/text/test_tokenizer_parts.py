"""Rules are applied longest first, in one pass, and never to texts that are to be kept."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.text.tokenizer_parts import CharsMap
from model_server.text.vocabularies.sentence_piece import parse_model, pieces_of
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.text.vocabularies.golden import PLACE

COMPILED = pieces_of(parse_model((PLACE / "bpe_rules.model").read_bytes())).charsmap
# The rules of tests/tools/golden/vocabularies.py.
RULES = {
    "\t": " ",
    "\n": " ",
    "\u00a0": " ",
    "\u3000": " ",
    "\u200b": "",
    "\uff41": "a",
    "\uff41\u0301": "\u00e1",
    "e\u0301": "\u00e9",
    "\u2460": "1",
    "\ufb01": "fi",
    "...": "\u2026",
    "\u1112\u1161\u11ab": "\ud55c",
}
TEXTS = st.text(st.sampled_from([*"".join(RULES), "a", ".", "e", "é", "🙂", " "]))


def by_hand(text: str) -> str:
    """The rules, one character after another."""
    out, place = [], 0
    while place < len(text):
        fitting = [rule for rule in RULES if text.startswith(rule, place)]
        rule = max(fitting, key=len, default=text[place])
        out.append(RULES.get(rule, rule))
        place += len(rule)
    return "".join(out)


@given(TEXTS)
def test_the_longest_rule_is_applied(text: str) -> None:
    assert CharsMap(COMPILED).apply(text) == by_hand(text)


@given(st.text())
def test_other_text_stays(text: str) -> None:
    assert CharsMap(COMPILED).apply(text) == by_hand(text)


def test_kept_texts_are_not_rewritten() -> None:
    rules = CharsMap(COMPILED, ["<\u2460>", "\n"])
    assert rules.apply("\u2460<\u2460>\u2460\n\t") == "1<\u2460>1\n "


def test_a_rule_across_two_plain_letters_is_found() -> None:
    assert CharsMap(COMPILED).apply("a..... e\u0301") == "a\u2026.. \u00e9"


@each_case(
    "compiled", [b"", b"\1", struct.pack("<I", 0), struct.pack("<I", 8) + b"1234", COMPILED[:40]]
)
def test_damaged_rules_are_refused(compiled: bytes) -> None:
    with pytest.raises(CheckpointError, match="damaged"):
        CharsMap(compiled)


@given(st.binary(min_size=4, max_size=64), TEXTS)
def test_any_trie_comes_to_an_end(units: bytes, text: str) -> None:
    units = units[: len(units) // 4 * 4]
    CharsMap(struct.pack("<I", len(units)) + units + b"a\0b\0").apply(text)


@given(TEXTS)
def test_each_new_character_knows_where_it_comes_from(text: str) -> None:
    rules = CharsMap(COMPILED)
    made, starts, ends = rules.applied(text)
    assert made == rules.apply(text)
    assert len(starts) == len(ends) == len(made)
    for letter, start, end in zip(made, starts, ends, strict=True):
        assert letter in by_hand(text[start:end])
    assert starts == sorted(starts)
