"""The life of a model in a server, as a pure table.

    NONE -> LOADING -> LOADED | FAILED -> (UNLOADING) -> NONE

Knows nothing of threads, engines or requests.
"""

from __future__ import annotations

from enum import Enum, auto

from sax.types import ServableStatus


class Event(Enum):
    """What can happen to a model in a server."""

    LOAD = auto()  # a load begins
    LOADED = auto()  # the loader returned
    FAILED = auto()  # the loader raised
    UNLOAD = auto()  # it is to go
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
    # A load that was told to stop still comes to an end.
    (_UNLOADING, Event.LOADED): _UNLOADING,
    (_UNLOADING, Event.FAILED): _UNLOADING,
    (_UNLOADING, Event.UNLOAD): _UNLOADING,
    (_UNLOADING, Event.UNLOADED): _NONE,
}


def transition(status: ServableStatus, event: Event) -> ServableStatus:
    """The status after the event. An event that cannot happen there is a bug of ours."""
    after = _TABLE.get((status, event))
    assert after is not None, f"{event!r} cannot happen to a model that is {status}"
    return after


def holds_memory(status: ServableStatus) -> bool:
    """Whether a model in this status may fill device memory."""
    return status in (_LOADING, _LOADED, _UNLOADING)
