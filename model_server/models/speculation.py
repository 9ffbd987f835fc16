"""Overrides for guessing tokens ahead: SPECULATION and MAX_GUESSES."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sax.errors import InvalidRequest

USUAL_GUESSES = 8
SPECULATION_DEFAULTS: Mapping[str, Any] = {
    # Guesses of the next tokens: "off"; "ngram": from what followed the last ones before; null: as
    # "ngram", in rows of the decode batch that are not used.
    "SPECULATION": None,
    "MAX_GUESSES": USUAL_GUESSES,  # of one sequence in one step
}
_MOST = 32


@dataclass(frozen=True, slots=True)
class Speculation:
    """Guesses that were asked for, or that are tried where they cost nothing."""

    guesses: int = USUAL_GUESSES  # of one sequence in one step, at most; 0: none
    asked: bool = False  # worth larger steps than the slots need


def parse_speculation(values: Mapping[str, Any]) -> Speculation:
    """Return what the overrides ask for. Raises InvalidRequest."""
    mode, guesses = values["SPECULATION"], values["MAX_GUESSES"]
    if mode not in ("off", "ngram", None):
        raise InvalidRequest(
            f'SPECULATION must be "off", "ngram" or null, not {mode!r}',
            param="overrides.SPECULATION",
        )
    if type(guesses) is not int or not 1 <= guesses <= _MOST:
        raise InvalidRequest(
            f"MAX_GUESSES is {guesses!r}; it must be from 1 to {_MOST}",
            param="overrides.MAX_GUESSES",
        )
    if mode == "off" and guesses != USUAL_GUESSES:
        raise InvalidRequest(
            f'MAX_GUESSES is {guesses}, and SPECULATION "off" makes no guesses: leave one out',
            param="overrides.MAX_GUESSES",
        )
    return Speculation(0 if mode == "off" else guesses, asked=mode == "ngram")
