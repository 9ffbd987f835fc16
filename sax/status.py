"""Canonical status codes, and the exception that Saxml's Python programs catch.

Saxml's own calls raise `StatusNotOk` of pybind11_abseil; every error of ours is one too, so that
`except StatusNotOk as error: error.status.code()` goes on working.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class StatusCode(IntEnum):
    """gRPC's codes, which are abseil's."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


@dataclass(frozen=True, slots=True)
class Status:
    """Outcome of a call; the methods have abseil's names."""

    status_code: StatusCode
    text: str = ""

    def ok(self) -> bool:
        """Return True if the call succeeded."""
        return self.status_code is StatusCode.OK

    def code(self) -> StatusCode:
        """Return the code by name."""
        return self.status_code

    def code_int(self) -> int:
        """Return the code's number."""
        return int(self.status_code)

    def raw_code(self) -> int:
        """Return the same number, under abseil's other name."""
        return int(self.status_code)

    def message(self) -> str:
        """Return the text of the error."""
        return self.text

    def to_string(self) -> str:
        """Return code and text in one line."""
        return "OK" if self.ok() else f"{self.status_code.name}: {self.text}"

    def __str__(self) -> str:
        return self.to_string()


class StatusNotOk(Exception):
    """Base class of every error that a call raises."""

    @property
    def status(self) -> Status:
        """Code and text of the error."""
        return Status(StatusCode.UNKNOWN, str(self))
