"""What a check found: an error, or a word on what was not checked. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence on one place; a note does not fail anything."""

    where: str
    text: str
    note: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


def title_of(each: dict[str, Any]) -> str:
    """How an object is called in messages."""
    return f"{each.get('kind', '?')}/{each.get('metadata', {}).get('name', '?')}"
