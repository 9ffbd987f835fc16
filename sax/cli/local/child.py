"""A process of a local cell and a port of it, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Child:
    """A process of the cell. Children of one gang start and end together, primary first."""

    name: str
    module: str
    flags: tuple[str, ...]
    log: Path
    gang: str = ""  # "": not part of a gang
    environ: tuple[tuple[str, str], ...] = ()  # variables beside the supervisor's own
    after: int = 0  # port of another child that listens before this one first starts; 0: at once


@dataclass(frozen=True, slots=True)
class Port:
    """A port that the cell needs, and the flag that changes it."""

    number: int
    owner: str
    flag: str
    host: str = ""
