"""What a load makes, whatever the kind of model: it holds memory until it is closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sax.types import ModelSpec, Progress

Report = Callable[[Progress], None]


class HeldMemory(Protocol):
    """Memory, or a place of a base, that is held until it is closed."""

    @property
    def closed(self) -> bool: ...

    def close(self) -> None:
        """Free it. Idempotent."""
        ...


class LoadedModel(Protocol):
    """A model in memory, which no servable has taken over yet."""

    def close(self) -> None:
        """Free what the load made, if nobody serves it."""
        ...


# Blocking. Raises LoadFailed and its subclasses, InvalidRequest, ModelPathNotFound.
Loader = Callable[[ModelSpec, Report], LoadedModel]
