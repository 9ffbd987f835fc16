"""SaxmlParameter: one attribute of Saxml's model classes, and what a publish that sets it gets."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sax.errors import InvalidRequest
from sax.format import shortened
from sax.overrides.value_rule import ValueRule, read_json


class Verdict(StrEnum):
    HONOURED = "honoured"
    IDLE = "no effect"  # accepted; listings warn of it
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class SaxmlParameter:
    name: str
    verdict: Verdict
    rule: ValueRule
    # What it does here; why it has no effect; or what to set instead.
    why: str
    # Values of one without effect, or that is refused, which say what is so here anyway.
    usual: tuple[Any, ...] = ()
    instead: str = ""  # on model paths of our own, if `why` says nothing useful there

    @property
    def elsewhere(self) -> str:
        """Say what to do on a model path of our own; "" for nothing to say."""
        return self.instead or ("" if self.verdict is Verdict.HONOURED else self.why)

    def read(self, text: str) -> Any:
        """Return the value in JSON text. Raises InvalidRequest unless it may stand there."""
        value = read_json(self.name, text)
        if not self.rule.fits(value):
            raise InvalidRequest(
                f"override {self.name}={shortened(text)}: give {self.rule.words}",
                param=f"overrides.{self.name}",
            )
        if self.verdict is Verdict.REFUSED and not self.is_usual(value):
            raise InvalidRequest(
                f"override {self.name}={shortened(text)} is not supported: {self.why}",
                param=f"overrides.{self.name}",
            )
        return value

    def is_usual(self, value: Any) -> bool:
        # 1 == True in Python, and not in JSON.
        return any(type(value) is type(each) and value == each for each in self.usual)

    def warning(self, value: Any) -> str | None:
        """Return why a value has no effect; None if it has, or says what is so anyway."""
        if self.verdict is not Verdict.IDLE or self.is_usual(value):
            return None
        return f"{self.name} has no effect here: {self.why}"
