"""Interface of a loaded model of any kind, as the rest of the server needs it.

Anything beyond this is between a kind of model and its handler.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from model_server.custom_servable import CustomServable
from model_server.embed_servable import EmbedServable
from model_server.lm_servable import LmServable
from model_server.loaded import AnyLoaded, Loaded, LoadedCustom
from model_server.method_stats import MethodStats


class Servable(Protocol):
    """A loaded model. Runs on the event loop."""

    model_id: str
    methods: dict[str, MethodStats]
    recent_batch_sizes: deque[int]
    cancelled: int  # requests whose caller went away

    @property
    def kind(self) -> str:
        """Name for messages: a language model, an embedding model, ..."""
        ...

    @property
    def memory(self) -> int:
        """Bytes of device memory in use."""
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

    async def close(self, drain_s: float) -> None:
        """Let running requests finish within the time, refuse the rest, free the memory."""
        ...


def make_servable(model_id: str, loaded: AnyLoaded) -> Servable:
    """Create the servable for this kind of loaded model."""
    if isinstance(loaded, Loaded):
        return LmServable(model_id, loaded)
    if isinstance(loaded, LoadedCustom):
        return CustomServable(model_id, loaded)
    return EmbedServable(model_id, loaded)
