"""Life cycle of a model in a server, as a pure table.

NONE -> LOADING -> LOADED | FAILED -> (UNLOADING) -> NONE
"""

from __future__ import annotations

from enum import Enum, auto

from sax.types import ServableStatus


class Event(Enum):
    """Events in the life of a model."""

    LOAD = auto()  # a load begins
    LOADED = auto()  # the loader returned
    FAILED = auto()  # the loader raised
    UNLOAD = auto()  # an unload was requested
    UNLOADED = auto()  # its memory is free

    def __repr__(self) -> str:
        return self.name


_NONE, _LOADING, _LOADED = ServableStatus.NONE, ServableStatus.LOADING, ServableStatus.LOADED
_FAILED, _UNLOADING = ServableStatus.FAILED, ServableStatus.UNLOADING

_TABLE: dict[tuple[ServableStatus, Event], ServableStatus] = {
    (_NONE, Event.LOAD): _LOADING,
    (_NONE, Event.UNLOAD): _NONE,
    (_LOADING, Event.LOADED): _LOADED,
    (_LOADING, Event.FAILED): _FAILED,
    (_LOADING, Event.UNLOAD): _UNLOADING,
    (_LOADED, Event.FAILED): _FAILED,  # its engine stopped
    (_LOADED, Event.UNLOAD): _UNLOADING,
    (_FAILED, Event.LOAD): _LOADING,
    (_FAILED, Event.UNLOAD): _NONE,  # it holds nothing
    # A cancelled load still runs to an end.
    (_UNLOADING, Event.LOADED): _UNLOADING,
    (_UNLOADING, Event.FAILED): _UNLOADING,
    (_UNLOADING, Event.UNLOAD): _UNLOADING,
    (_UNLOADING, Event.UNLOADED): _NONE,
}


def transition(status: ServableStatus, event: Event) -> ServableStatus:
    """Return the status after the event; an impossible event is a bug."""
    after = _TABLE.get((status, event))
    assert after is not None, f"{event!r} cannot happen to a model that is {status}"
    return after


def holds_memory(status: ServableStatus) -> bool:
    """Return True if a model in this status may hold device memory."""
    return status in (_LOADING, _LOADED, _UNLOADING)
