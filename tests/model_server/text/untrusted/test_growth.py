"""What the steps of a tokenizer may make of a text, told from them alone."""

from __future__ import annotations

from typing import Any

import pytest

from model_server.text.untrusted.encoder import are_known, check_growth
from model_server.text.vocabularies.cutting import CUTTINGS
from sax.errors import CheckpointError
from tests.each_case import each_case


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def chain(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": [*steps]}


DOUBLE = replace({"String": "a"}, "aa")


@each_case(
    "steps",
    [
        chain(*[DOUBLE] * 8),
        replace({"String": "a"}, "a" * 129),
        replace({"Regex": "x*"}, "a" * 200),
        chain(*[replace({"Regex": "(?=q)"}, "q")] * 8),
        chain({"type": "NFKC"}, *[DOUBLE] * 3),
        {"type": "Prepend", "prepend": "a" * 5000},
        chain({"type": "Prepend", "prepend": "a" * 100}, *[DOUBLE] * 6),
    ],
)
def test_steps_that_can_make_too_much_of_a_text_are_refused(steps: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="of one, and"):
        check_growth(steps, "normalizer")


@each_case(
    "steps",
    [
        None,
        chain(replace({"String": " "}, "\u2581"), {"type": "Prepend", "prepend": "\u2581"}),
        chain({"type": "NFKC"}, {"type": "Lowercase"}, replace({"Regex": " {2,}"}, " ")),
        chain(*[replace({"Regex": r"\s{2,}|[\t]"}, " ")] * 20),
        {"type": "BertNormalizer", "clean_text": True},
        {"type": "ByteLevel", "add_prefix_space": True},
        replace({"String": "a" * 100}, "b" * 9000),
    ],
)
def test_steps_of_usual_tokenizers_are_taken(steps: dict[str, Any] | None) -> None:
    check_growth(steps, "normalizer")


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}


@each_case("name", CUTTINGS)
def test_patterns_of_families_are_known(name: str) -> None:
    assert are_known({"type": "Sequence", "pretokenizers": list(CUTTINGS[name].steps)})


@each_case(
    "pattern, known",
    [
        (r"\d", True),
        (r"[^\s\p{L}]+|\p{N}{1,3}", True),
        (r"\s+|[a-z]*", True),
        (r"(a+)+$", False),
        (r"a*a*b", False),
        (r"(?:a|a)*b", False),
        (r"a{1000}b{1000}", False),
    ],
)
def test_patterns_that_repeat_one_thing_are_known_and_others_not(pattern: str, known: bool) -> None:
    assert are_known({"type": "Sequence", "pretokenizers": [split(pattern)]}) == known
