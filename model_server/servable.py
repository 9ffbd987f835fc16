"""A model loaded in this server, of whatever kind: what the server as a whole needs of it.

What a kind can do beyond that is between it and its handler.
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
    """Lives on the event loop."""

    model_id: str
    methods: dict[str, MethodStats]
    recent_batch_sizes: deque[int]
    cancelled: int  # requests whose caller went away

    @property
    def kind(self) -> str:
        """In words: a language model, an embedding model, ..."""
        ...

    @property
    def memory(self) -> int:
        """Bytes it fills."""
        ...

    @property
    def running(self) -> int:
        """Requests that are computed now."""
        ...

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        ...

    @property
    def failure(self) -> str | None:
        """Why nothing can be served any more, if that is so."""
        ...

    async def close(self, drain_s: float) -> None:
        """Let what runs end within the time, refuse the rest, free the memory."""
        ...


def make_servable(model_id: str, loaded: AnyLoaded) -> Servable:
    """Serve what was loaded, by its kind."""
    if isinstance(loaded, Loaded):
        return LmServable(model_id, loaded)
    if isinstance(loaded, LoadedCustom):
        return CustomServable(model_id, loaded)
    return EmbedServable(model_id, loaded)
