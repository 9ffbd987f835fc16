"""The overrides of draft tokens are honoured or refused by name."""

from __future__ import annotations

import pytest

from model_server.models.overrides import Speculation, parse_speculation
from sax.errors import InvalidRequest


def test_what_is_asked_for_is_made() -> None:
    cases = [
        (None, 8, Speculation(8, asked=False)),
        (None, 3, Speculation(3, asked=False)),
        ("ngram", 32, Speculation(32, asked=True)),
        ("off", 8, Speculation(0, asked=False)),
    ]
    for mode, draft_tokens, made in cases:
        assert parse_speculation({"SPECULATION": mode, "MAX_GUESSES": draft_tokens}) == made


def test_anything_else_is_refused_by_name() -> None:
    cases = [
        ("medusa", 8, "SPECULATION must be .*not 'medusa'"),
        (7, 8, "SPECULATION must be"),
        (None, 0, "MAX_GUESSES is 0; it must be from 1 to 32"),
        ("ngram", 33, "MAX_GUESSES is 33"),
        (None, None, "MAX_GUESSES is None"),
        ("off", 4, 'MAX_GUESSES is 4, and SPECULATION "off" makes no draft tokens'),
    ]
    for mode, draft_tokens, complaint in cases:
        with pytest.raises(InvalidRequest, match=complaint):
            parse_speculation({"SPECULATION": mode, "MAX_GUESSES": draft_tokens})


DRAFT = {"SPECULATION": "draft", "MAX_GUESSES": 5, "DRAFT_MODEL": "/models/small.gguf"}


def test_a_draft_model_is_asked_for_by_name() -> None:
    made = parse_speculation({**DRAFT, "DRAFT_QUANTIZE": "stored"})
    assert made == Speculation(5, asked=True, draft="/models/small.gguf", draft_quantize="stored")


def test_settings_of_a_draft_model_that_contradict_each_other_are_refused() -> None:
    cases: list[tuple[dict[str, object], str, str]] = [
        (
            {"DRAFT_MODEL": None},
            'SPECULATION is "draft", and DRAFT_MODEL is missing',
            "DRAFT_MODEL",
        ),
        ({"DRAFT_MODEL": ""}, "DRAFT_MODEL is ''; give a checkpoint", "DRAFT_MODEL"),
        ({"SPECULATION": None}, "DRAFT_MODEL is '/models/small.gguf', which needs", "DRAFT_MODEL"),
        ({"SPECULATION": "ngram"}, 'needs SPECULATION "draft"', "DRAFT_MODEL"),
        (
            {"SPECULATION": None, "DRAFT_MODEL": None, "DRAFT_QUANTIZE": "int8"},
            "DRAFT_QUANTIZE is 'int8', which needs",
            "DRAFT_QUANTIZE",
        ),
    ]
    for changes, complaint, param in cases:
        with pytest.raises(InvalidRequest, match=complaint) as caught:
            parse_speculation({**DRAFT, **changes})
        assert caught.value.param == f"overrides.{param}"
