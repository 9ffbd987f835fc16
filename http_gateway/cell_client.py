"""What the gateway needs from a cell: the seam between routes and the sax SDK.

`sax.client.AsyncClient` is the one real implementation; tests bring an arithmetic one.
Knows nothing of HTTP or gRPC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from sax.codec.extra_inputs import ExtraInputs
from sax.types import Embedded, EmbedInput, Event, GenerateRequest, PublishedModel, TokenChunk


class CellClient(Protocol):
    """The calls of `sax.client.AsyncClient` that routes make."""

    async def publish(
        self,
        model_id: str,
        model_path: str,
        checkpoint: str,
        replicas: int = 1,
        overrides: Mapping[str, str] | None = None,
    ) -> object: ...

    async def update(
        self,
        model_id: str,
        *,
        model_path: str | None = None,
        checkpoint: str | None = None,
        replicas: int | None = None,
        overrides: Mapping[str, str] | None = None,
        revision: int | None = None,
    ) -> object: ...

    async def rollback(self, model_id: str, version: str = "") -> str:
        """Gives the version that is wanted now."""
        ...

    async def events(
        self, model_id: str = "", *, before: int = 0, limit: int = 0
    ) -> Sequence[Event]: ...

    async def unpublish(self, model_id: str) -> object: ...

    async def list(self, model_id: str) -> PublishedModel: ...

    async def list_all(self, cell: str | None = None) -> Sequence[PublishedModel]: ...

    async def generate_to(
        self,
        request: GenerateRequest,
        sink: Callable[[TokenChunk], None],
        timeout_s: float | None = None,
    ) -> None:
        """Give `sink` the chunks as they come; cancelling this cancels on the server."""
        ...

    async def saxml_generate(
        self,
        model_id: str,
        text: str,
        extra_inputs: ExtraInputs | None = None,
        timeout_s: float | None = None,
    ) -> Sequence[tuple[str, float]]:
        """LMService.Generate: every sample with its score, best first."""
        ...

    async def embed_counted(
        self, model_id: str, inputs: Sequence[EmbedInput], timeout_s: float | None = None
    ) -> Embedded:
        """The vector of each input, and how many tokens they had."""
        ...
