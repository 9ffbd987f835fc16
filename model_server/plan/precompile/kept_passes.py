"""Programs of passes, which are compiled to plan a model's memory and are then written to its set.

A plan needs the memory of a compiled program; a program that was written cannot tell it where its
devices are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True, slots=True)
class MadePass:
    """A lowered program that was compiled already."""

    lowered: jax.stages.Lowered
    program: jax.stages.Compiled

    def as_text(self) -> str:
        return self.lowered.as_text()

    def compile(self) -> jax.stages.Compiled:
        """Return the program; it is not compiled again."""
        return self.program


class KeptPasses:
    """Compiles programs and keeps them. Several threads call `compiled`, once per program."""

    def __init__(self) -> None:
        self.made: dict[str, MadePass] = {}

    def compiled(self, name: str, lower: Callable[[], jax.stages.Lowered]) -> Any:
        lowered = lower()
        self.made[name] = MadePass(lowered, lowered.compile())
        return self.made[name].program

    def pass_on(self, name: str, body: bytes) -> None:
        """Do nothing: there is no other host."""
