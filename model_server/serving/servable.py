"""Interface of a loaded model of any kind, as the rest of the server needs it.

Anything beyond this is between a kind of model and its handler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol, TypeVar

from model_server.engine.watchdog import OnHang
from model_server.loading.loaded import Loaded, LoadedAdapter
from model_server.loading.loaded_batches import LoadedBatches
from model_server.loading.loaded_model import LoadedModel
from model_server.serving.adapter_servable import AdapterServable
from model_server.serving.batch_servable import BatchServable
from model_server.serving.lm_servable import LmServable
from model_server.serving.method_stats import MethodStats
from model_server.serving.weight_changes import WeightChanges
from sax.activity import Activity
from sax.memory_parts import MemoryParts
from sax.types import ServableStatus

L = TypeVar("L", bound=LoadedBatches)


class StatusEvent(Enum):
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

_TABLE: dict[tuple[ServableStatus, StatusEvent], ServableStatus] = {
    (_NONE, StatusEvent.LOAD): _LOADING,
    (_NONE, StatusEvent.UNLOAD): _NONE,
    (_LOADING, StatusEvent.LOADED): _LOADED,
    (_LOADING, StatusEvent.FAILED): _FAILED,
    (_LOADING, StatusEvent.UNLOAD): _UNLOADING,
    (_LOADED, StatusEvent.FAILED): _FAILED,  # its engine stopped
    (_LOADED, StatusEvent.UNLOAD): _UNLOADING,
    (_FAILED, StatusEvent.LOAD): _LOADING,
    (_FAILED, StatusEvent.UNLOAD): _NONE,  # it holds nothing
    # A cancelled load still runs to an end.
    (_UNLOADING, StatusEvent.LOADED): _UNLOADING,
    (_UNLOADING, StatusEvent.FAILED): _UNLOADING,
    (_UNLOADING, StatusEvent.UNLOAD): _UNLOADING,
    (_UNLOADING, StatusEvent.UNLOADED): _NONE,
}


def transition(status: ServableStatus, event: StatusEvent) -> ServableStatus:
    after = _TABLE.get((status, event))
    assert after is not None, f"{event!r} cannot happen to a model that is {status}"
    return after


class Servable(Protocol):
    """A loaded model. Runs on the event loop."""

    model_id: str
    methods: dict[str, MethodStats]
    recent_batch_sizes: deque[int]
    cancelled: int  # requests whose caller went away

    @property
    def loaded(self) -> LoadedModel: ...

    @property
    def kind(self) -> str:
        """Name for messages: a language model, an embedding model, ..."""
        ...

    @property
    def note(self) -> str:
        """Difference from what the model path promises; "" if there is none."""
        ...

    @property
    def kernels(self) -> str:
        """Kernels that compute the model, for people; "" if there is nothing to tell."""
        ...

    @property
    def memory(self) -> int:
        """Bytes of device memory in use."""
        ...

    @property
    def parts(self) -> MemoryParts:
        """These bytes, by what takes them."""
        ...

    @property
    def activity(self) -> Activity:
        """Its load now, and totals since it was loaded."""
        ...

    @property
    def running(self) -> int:
        """Requests being computed."""
        ...

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        ...

    @property
    def failure(self) -> str | None:
        """The reason if nothing can be served any more; else None."""
        ...

    @property
    def weights(self) -> WeightChanges | None:
        """Changes of its weights in place, an adapter's of its base; None: there are none."""
        ...

    def part(self, kind: type[L], /) -> BatchServable[L] | None:
        """Return what answers in batches of this kind; None: nothing of it does."""
        ...

    async def close(self, drain_s: float) -> None:
        """Let running requests finish within the time, refuse the rest, free the memory."""
        ...


def make_servable(
    model_id: str,
    loaded: LoadedModel,
    find: Callable[[str], Servable],
    on_hang: OnHang | None = None,
) -> Servable:
    """Return the servable of what was loaded. find: the base of an adapter. Raises NotLoaded."""
    if isinstance(loaded, LoadedAdapter):
        base = find(loaded.base)
        assert isinstance(base, LmServable), "only language models have room for adapters"
        return AdapterServable(model_id, loaded, base)
    if isinstance(loaded, Loaded):
        return LmServable(model_id, loaded, on_hang)
    assert isinstance(loaded, LoadedBatches), "a model is stepped, or answers in batches"
    return BatchServable(model_id, loaded)
