"""Values of a session's handles, present or still to come."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax

from model_server.pathways.scheduling.handles import Fault
from model_server.pathways.worker.statuses import (
    Poisoned,
    RequestError,
    UnknownHandle,
    WrongRequest,
    fault_of,
)

log = logging.getLogger(__name__)

Buffers = Mapping[int, bytes | memoryview]
# The rest of a request, which blocks: returns the host buffers of its answer.
Later = Callable[[], Buffers | None]


class NotHere(Exception):
    """Another host of the island answers this."""


class Elsewhere:
    """Stands for an array of which this host of the island holds no part."""


ELSEWHERE = Elsewhere()


class Strings(NamedTuple):
    """One string on every device of its sharding: how clients learn what a function returned."""

    data: bytes
    devices: int


class HeldElsewhere(UnknownHandle):
    """An array of which this host holds no part; nor does it of arrays made from it."""


class Arriving:
    """A value that comes later: its parts from another island, or of a call. Thread-safe."""

    def __init__(self) -> None:
        self._come = threading.Event()
        self._value: There | None = None
        self._lock = threading.Lock()
        self._then: list[Callable[[], None]] = []

    @property
    def come(self) -> bool:
        return self._come.is_set()

    def set(self, value: There) -> None:
        with self._lock:
            self._value = value
            self._come.set()
            then, self._then = self._then, []
        for call in then:
            call()

    def then(self, call: Callable[[], None]) -> None:
        """Call once it is there: at once, or on the thread that brings it."""
        with self._lock:
            if not self._come.is_set():
                self._then.append(call)
                return
        call()

    def get(self) -> There:
        """Wait for it: the sender sets a Fault if it cannot come."""
        self._come.wait()
        assert self._value is not None
        return self._value


class HostCopy:
    """Bytes of an array on their way to its client; a context that ends when they are there."""

    def __init__(self) -> None:
        self._done = threading.Event()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def wait(self) -> None:
        self._done.wait()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self.leave()

    def leave(self) -> None:
        self._done.set()


There = jax.Array | Fault | Elsewhere | Strings
Value = There | Arriving


class ComingValues:
    """Values that a client waits for, or does something else with once they are there."""

    def __init__(self, values: Sequence[Value], instead: Callable[[], Any] | None = None) -> None:
        """instead: of waiting until they are computed; it finds errors itself."""
        self._values = values
        self._instead = instead

    def then(self, call: Callable[[], None]) -> None:
        """Call once all that come are there: at once, or on the thread that brings the last."""
        coming = [each for each in self._values if isinstance(each, Arriving) and not each.come]
        if not coming:
            call()
            return
        coming[0].then(lambda: self.then(call))

    def __call__(self) -> Any:
        """Wait until all are computed. Raises what any failed with; what was donated did not."""
        if self._instead is not None:
            return self._instead()
        for value in self._values:
            if isinstance(value, Arriving):
                value = value.get()
            if isinstance(value, Fault):
                raise Poisoned(value)
            if isinstance(value, jax.Array) and not value.is_deleted():
                value.block_until_ready()
        return None


@dataclass(slots=True)
class Session:
    """A client's arrays, programs and futures, by handle."""

    number: int
    arrays: dict[int, Value] = field(default_factory=dict)
    programs: dict[int, Any] = field(default_factory=dict)
    futures: dict[int, Any] = field(default_factory=dict)  # arrays to wait for
    deleted: set[int] = field(default_factory=set)  # programs that may not run again
    ended: threading.Event = field(default_factory=threading.Event)
    _fetches: dict[int, list[HostCopy]] = field(default_factory=dict)  # of arrays, by handle

    def known(self, handles: Iterable[int]) -> list[Value]:
        """Return values without waiting for those that come. Raises UnknownHandle."""
        return [
            found if isinstance(found := self.arrays.get(handle), Arriving) else self.value(handle)
            for handle in handles
        ]

    def value(self, handle: int) -> There:
        """Raises UnknownHandle."""
        found = self.arrays.get(handle)
        if found is None:
            raise UnknownHandle(f"there is no array {handle:#x} in this session")
        return found.get() if isinstance(found, Arriving) else found

    def array(self, handle: int) -> jax.Array:
        """Raises UnknownHandle, and Poisoned if it could not be made."""
        found = self.value(handle)
        if isinstance(found, Fault):
            raise Poisoned(found)
        if isinstance(found, Elsewhere):
            raise HeldElsewhere(f"array {handle:#x} is held by another host of the island")
        if isinstance(found, Strings):
            raise WrongRequest("a string is no argument: it tells what a function returned")
        return found

    def held(self, handles: Iterable[int]) -> list[jax.Array]:
        return list(map(self.array, handles))

    def program(self, handle: int) -> Any:
        """Return a Program or CallProgram. Raises UnknownHandle."""
        found = self.programs.get(handle)
        if found is None:
            raise UnknownHandle(f"there is no program {handle:#x} in this session")
        return found

    def fetching(self, handle: int) -> HostCopy:
        """Return a new fetch of an array: to be left when its bytes are there."""
        fetch = HostCopy()
        self._fetches.setdefault(handle, []).append(fetch)
        return fetch

    def fetched(self, *handles: int) -> None:
        """Wait until arrays whose memory will be reused were fetched."""
        if self._fetches:
            left = {
                handle: [each for each in fetches if not each.done]
                for handle, fetches in self._fetches.items()
            }
            self._fetches = {handle: fetches for handle, fetches in left.items() if fetches}
        for handle in handles:
            for fetch in self._fetches.get(handle, ()):
                fetch.wait()

    def poison(self, handles: Iterable[int], fault: Fault) -> None:
        self.arrays.update(dict.fromkeys(handles, fault))

    def store(self, handles: Any, make: Callable[[], Sequence[Any]]) -> Sequence[Value]:
        """Make arrays under handles; where that fails, each stands for the error.

        The client goes on before it hears of this, and finds the error where it waits.
        """
        try:
            values: Sequence[Value] = make()
            if len(values) != len(handles):
                raise WrongRequest(f"{len(handles)} handles for {len(values)} arrays")
        except NotHere:
            raise
        except HeldElsewhere:
            values = [ELSEWHERE] * len(handles)
        except Exception as exc:
            values = [fault_of(exc)] * len(handles)
            if not isinstance(exc, Poisoned | RequestError):
                log.warning("arrays could not be made: %s", exc)
        self.arrays.update(zip(handles, values, strict=True))
        return values

    def parts(self, handles: Any) -> list[jax.Array | Elsewhere]:
        """Return what will be put together. Raises Poisoned if one could not be made."""
        parts: list[jax.Array | Elsewhere] = []
        for handle in handles:
            value = self.value(handle)
            if isinstance(value, Fault):
                raise Poisoned(value)
            if isinstance(value, Strings):
                raise WrongRequest("strings are put together with nothing")
            parts.append(value)
        return parts

    def waited(self, future: int) -> Later | None:
        """Take a future out, and return what waits for it; None: it is ready."""
        values = self.futures.pop(future, ())
        return ComingValues(values) if values else None


class RequestTask(NamedTuple):
    """A request to carry out."""

    session: Session
    request: Any  # CopyArraysRequest, ...
    response: Any  # to be filled: CopyArraysResponse, ...
    made: int  # first of the handles that it may give out
    buffers: Buffers  # host buffers that it names, by handle

    def results(self, chosen: Sequence[int], count: int) -> list[int]:
        """Return the handles of results, chosen by the client or the next ones of ours.

        The response's `array_handles` get them. Raises WrongRequest if they are more or fewer.
        """
        if chosen and len(chosen) != count:
            raise WrongRequest(f"{len(chosen)} handles for {count} arrays")
        handles = list(chosen) or list(range(self.made, self.made + count))
        self.response.array_handles.extend(handles)
        return handles
