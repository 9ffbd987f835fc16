"""Principal of the current call: set once at the edge, read where a name is needed."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller, or an anonymous one."""

    name: str = ""  # "": authentication is off, or the caller did not authenticate

    @property
    def known(self) -> bool:
        """True if the caller authenticated."""
        return bool(self.name)


ANYONE = Principal()

_current: ContextVar[Principal] = ContextVar("principal", default=ANYONE)


def caller() -> Principal:
    """Return the principal of the call that this task answers."""
    return _current.get()


def enter_call(principal: Principal) -> None:
    """Set the principal of the call that this task answers."""
    _current.set(principal)
