"""What the devices of a server come to, those of all its hosts together. Knows nothing of jax."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Devices:
    """How many there are, and what they hold."""

    count: int
    memory: int  # bytes that models may fill
