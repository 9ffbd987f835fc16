"""Who asks: the principal of the call that is being answered.

Set once per call at the edge, read where a record or a refusal needs a name. Knows nothing of how
anyone proves who they are.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """Someone who proved who they are, or nobody in particular."""

    name: str = ""  # "": nobody has to prove anything here, or nobody did

    @property
    def known(self) -> bool:
        """Did they prove it?"""
        return bool(self.name)


ANYONE = Principal()

_current: ContextVar[Principal] = ContextVar("principal", default=ANYONE)


def caller() -> Principal:
    """Who made the call that this task answers."""
    return _current.get()


def enter_call(principal: Principal) -> None:
    """From here on this task answers a call of this principal."""
    _current.set(principal)
