"""Device count and memory of a server, summed over its hosts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Devices:
    count: int
    memory: int  # bytes that models may fill
