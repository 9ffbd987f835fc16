"""One process of a local cell, and one port of it: values, without anything that runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Child:
    """One process of the cell. Children of one gang live and die together, the primary first."""

    name: str
    module: str
    flags: tuple[str, ...]
    log: Path
    gang: str = ""  # "": it lives alone


@dataclass(frozen=True, slots=True)
class Port:
    """A port the cell needs, and the flag that moves it."""

    number: int
    owner: str
    flag: str
    host: str = ""
