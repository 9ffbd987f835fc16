"""The gateway's interface to a cell.

`sax.client.AsyncClient` is the one real implementation; tests use an arithmetic fake.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Protocol

from sax.activity import ServedPhase
from sax.flags.last_lines import LogLine
from sax.passes import Classified, Embedded, PairScores
from sax.scaling import Scaling
from sax.speech import SpeechRequest, SpokenPart, TranscriptPart, TranscriptRequest
from sax.types import (
    PLAIN_CHAT,
    ChatOptions,
    EmbedInput,
    Event,
    GenerateRequest,
    Message,
    Overview,
    PairInput,
    PublishedModel,
    Rights,
    SaxmlSamples,
    TokenChunk,
    Tokenized,
    Version,
)
from sax.weights import ReplicaWeights, WeightChange
from sax.wire.extra_inputs import ExtraInputs


class CellClient(Protocol):
    """The methods of `sax.client.AsyncClient` that routes use."""

    def transcribe_stream(
        self, request: TranscriptRequest, timeout_s: float | None = None
    ) -> AsyncGenerator[TranscriptPart, None]: ...

    def speak_stream(
        self, request: SpeechRequest, timeout_s: float | None = None
    ) -> AsyncGenerator[SpokenPart, None]: ...

    async def publish(
        self,
        model_id: str,
        model_path: str,
        checkpoint: str,
        replicas: int = 1,
        overrides: Mapping[str, str] | None = None,
        *,
        autoscaling: Scaling | None = None,
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
        autoscaling: Scaling | None = None,
        canary: float | None = None,
    ) -> object: ...

    async def promote(self, model_id: str) -> str:
        """Return the version that is now wanted."""
        ...

    async def abort(self, model_id: str) -> str:
        """Return the version that is now wanted."""
        ...

    async def rollback(self, model_id: str, version: str = "") -> str:
        """Return the version that is now wanted."""
        ...

    async def change_weights(
        self, change: WeightChange, timeout_s: float = ...
    ) -> Sequence[ReplicaWeights]:
        """Change the weights of every ready replica; one that did not follow has an error."""
        ...

    async def events(
        self, model_id: str = "", *, before: int = 0, limit: int = 0
    ) -> Sequence[Event]: ...

    async def versions(self, model_id: str) -> Sequence[Version]: ...

    async def log(self, server: str = "") -> Sequence[LogLine]:
        """Return the last lines of a model server's log; "": of the admin server's."""
        ...

    async def phases(self, request_ids: Sequence[str]) -> Mapping[str, ServedPhase]:
        """Return how far requests are, of those whose model servers tell."""
        ...

    async def unpublish(self, model_id: str) -> object: ...

    async def list(self, model_id: str) -> PublishedModel: ...

    async def list_all(self, cell: str | None = None) -> Sequence[PublishedModel]: ...

    async def overview(self) -> Overview: ...

    async def rights(self) -> Rights:
        """Return what the caller may change. Raises UnsupportedParameter if the admin does not
        tell."""
        ...

    async def generate_to(
        self,
        request: GenerateRequest,
        sink: Callable[[TokenChunk], None],
        timeout_s: float | None = None,
    ) -> None:
        """Pass chunks to `sink` as they arrive; cancelling this cancels on the server."""
        ...

    async def saxml_generate_counted(
        self,
        model_id: str,
        text: str,
        extra_inputs: ExtraInputs | None = None,
        timeout_s: float | None = None,
    ) -> SaxmlSamples:
        """Call LMService.Generate."""
        ...

    async def tokenize(
        self,
        model_id: str,
        prompt: str | tuple[Message, ...],
        timeout_s: float | None = None,
        *,
        add_special_tokens: bool | None = None,
        chat: ChatOptions = PLAIN_CHAT,
    ) -> tuple[Sequence[int], int]: ...

    async def tokenize_texts(
        self,
        model_id: str,
        prompt: str | tuple[Message, ...],
        timeout_s: float | None = None,
        *,
        add_special_tokens: bool | None = None,
        chat: ChatOptions = PLAIN_CHAT,
    ) -> Tokenized: ...

    async def detokenize(
        self, model_id: str, ids: Sequence[int], timeout_s: float | None = None
    ) -> str: ...

    async def embed_counted(
        self,
        model_id: str,
        inputs: Sequence[EmbedInput],
        timeout_s: float | None = None,
        *,
        dimensions: int = 0,
        prompt_name: str = "",
        takes_tokens: bool = False,
    ) -> Embedded: ...

    async def classify(
        self,
        model_id: str,
        inputs: Sequence[EmbedInput],
        timeout_s: float | None = None,
        *,
        takes_tokens: bool = False,
        candidates: Sequence[PairInput] = (),
    ) -> Classified: ...

    async def score_pairs(
        self,
        model_id: str,
        first: Sequence[PairInput],
        second: Sequence[PairInput],
        timeout_s: float | None = None,
    ) -> PairScores: ...
