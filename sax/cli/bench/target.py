"""Interface of whatever answers the requests of a benchmark."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Protocol

from sax.cli.bench.workload import PlannedRequest


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """A part of an answer, as it arrives."""

    shown: bool  # a reader sees more text or tokens than before
    tokens: int | None = None  # of the answer so far; None: not told
    prompt_tokens: int | None = None


class BenchTarget(Protocol):
    """A server that is measured."""

    @property
    def subject(self) -> dict[str, Any]:
        """Its name and how it is asked, for the report."""
        ...

    async def prepare(self) -> None:
        """Find out what it takes, before anything is measured. Raises SaxError."""
        ...

    def answer(self, request: PlannedRequest) -> AsyncGenerator[AnswerPart, None]:
        """Stream one answer. Raises SaxError."""
        ...
