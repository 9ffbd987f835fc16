"""The overrides of guesses are honoured or refused by name."""

from __future__ import annotations

import pytest

from model_server.models.speculation import Speculation, parse_speculation
from sax.errors import InvalidRequest


@pytest.mark.parametrize(
    ("mode", "guesses", "made"),
    [
        (None, 8, Speculation(8, asked=False)),
        (None, 3, Speculation(3, asked=False)),
        ("ngram", 32, Speculation(32, asked=True)),
        ("off", 8, Speculation(0, asked=False)),
    ],
)
def test_what_is_asked_for_is_made(mode: str | None, guesses: int, made: Speculation) -> None:
    assert parse_speculation({"SPECULATION": mode, "MAX_GUESSES": guesses}) == made


@pytest.mark.parametrize(
    ("mode", "guesses", "complaint"),
    [
        ("medusa", 8, "SPECULATION must be .*not 'medusa'"),
        (7, 8, "SPECULATION must be"),
        (None, 0, "MAX_GUESSES is 0; it must be from 1 to 32"),
        ("ngram", 33, "MAX_GUESSES is 33"),
        (None, None, "MAX_GUESSES is None"),
        ("off", 4, 'MAX_GUESSES is 4, and SPECULATION "off" makes no guesses'),
    ],
)
def test_anything_else_is_refused_by_name(mode: object, guesses: object, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        parse_speculation({"SPECULATION": mode, "MAX_GUESSES": guesses})
