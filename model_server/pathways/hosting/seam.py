"""The executor of a worker, as the thread that runs it calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from model_server.pathways.scheduling.handles import Fault
from model_server.pathways.scheduling.merging import Buffer
from model_server.pathways.worker.parcels import Parcel

# IfrtResponse (None: another host of the island answers), filled host buffers by handle
Answer = Callable[[Any | None, Mapping[int, Buffer]], None]


class ComingArray(Protocol):
    """An array whose shards come from another island."""

    @property
    def complete(self) -> bool:
        """Tell whether it, or an error in its place, is there."""
        ...

    def arrive(self, parcel: Parcel) -> None: ...

    def fail(self, fault: Fault) -> None: ...


class RequestExecutor(Protocol):
    """Executes requests on the local devices. Called by one thread, in order."""

    def describe(self) -> Any:
        """Return the InitResponse of this process."""
        ...

    def execute(
        self,
        session: int,
        request: Any,
        made: int,
        buffers: Mapping[int, Any],
        answer: Answer,
    ) -> None:
        """Start a request; `answer` is called once, at any time, from any thread."""
        ...

    def send(self, session: int, handle: int, deliver: Callable[[Parcel | Fault], None]) -> None:
        """Hand over the shards of an array that are here, once it is computed."""
        ...

    def receive(
        self, session: int, handle: int, device_ids: Sequence[int], memory_kind: str | None
    ) -> ComingArray:
        """Put what will arrive under a handle."""
        ...

    def forget(self, session: int) -> None:
        """Free everything of a session."""
        ...
