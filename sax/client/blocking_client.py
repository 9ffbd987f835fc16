"""Blocking version of `AsyncClient`, which it runs in an event loop on a thread."""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType

from sax.client.async_client import AsyncClient, Models, Scores, Servers, Texts, Vectors
from sax.client.attempts import ANY_ROUTE, RetryLimits, Route
from sax.client.history import Events, Versions
from sax.client.loop_thread import LoopThread
from sax.client.watch import WatchEvent
from sax.proto import lm_pb2
from sax.scaling import Scaling
from sax.types import CellStats, EmbedInput, GenerateRequest, Message, PublishedModel, TokenChunk
from sax.wire.extra_inputs import ExtraInputs


class Client:
    """Client of one cell, for any number of threads. AsyncClient documents each call."""

    def __init__(self, admin: str | None = None, *, patience: RetryLimits | None = None) -> None:
        self._client = AsyncClient(admin, patience=patience)
        self._thread = LoopThread("sax-client")
        atexit.register(self.close)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the client; calls in other threads fail with Cancelled. Closing twice is fine."""
        atexit.unregister(self.close)
        if not self._thread.closed:
            self._thread.run(self._client.close())
            self._thread.close()

    # Operators

    def publish(
        self,
        model_id: str,
        model_path: str,
        checkpoint: str,
        replicas: int = 1,
        overrides: Mapping[str, str] | None = None,
        *,
        autoscaling: Scaling | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Publish a model; returns once that is durable."""
        self._thread.run(
            self._client.publish(
                model_id,
                model_path,
                checkpoint,
                replicas,
                overrides,
                autoscaling=autoscaling,
                timeout_s=timeout_s,
            )
        )

    def update(
        self,
        model_id: str,
        *,
        model_path: str | None = None,
        checkpoint: str | None = None,
        replicas: int | None = None,
        overrides: Mapping[str, str] | None = None,
        acls: Mapping[str, str] | None = None,
        admin_acl: str | None = None,
        revision: int | None = None,
        autoscaling: Scaling | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Change the given fields and keep the rest."""
        self._thread.run(
            self._client.update(
                model_id,
                model_path=model_path,
                checkpoint=checkpoint,
                replicas=replicas,
                overrides=overrides,
                acls=acls,
                admin_acl=admin_acl,
                revision=revision,
                autoscaling=autoscaling,
                timeout_s=timeout_s,
            )
        )

    def unpublish(self, model_id: str, *, timeout_s: float | None = None) -> None:
        """Unpublish a model; returns once that is durable."""
        self._thread.run(self._client.unpublish(model_id, timeout_s=timeout_s))

    def rollback(self, model_id: str, version: str = "", *, timeout_s: float | None = None) -> str:
        """Return to a version ("": the one before the current) and return its id."""
        return self._thread.run(self._client.rollback(model_id, version, timeout_s=timeout_s))

    def versions(self, model_id: str, *, timeout_s: float | None = None) -> Versions:
        """List the versions a model can roll back to, newest first."""
        return self._thread.run(self._client.versions(model_id, timeout_s=timeout_s))

    def events(
        self,
        model_id: str = "",
        *,
        before: int = 0,
        limit: int = 0,
        timeout_s: float | None = None,
    ) -> Events:
        """List changes with author and time, newest first."""
        return self._thread.run(
            self._client.events(model_id, before=before, limit=limit, timeout_s=timeout_s)
        )

    def list(self, model_id: str, *, timeout_s: float | None = None) -> PublishedModel:
        """Return one model with its replicas."""
        return self._thread.run(self._client.list(model_id, timeout_s=timeout_s))

    def list_all(self, cell: str | None = None, *, timeout_s: float | None = None) -> Models:
        """List the models of a cell."""
        return self._thread.run(self._client.list_all(cell, timeout_s=timeout_s))

    def servers(self, cell: str | None = None, *, timeout_s: float | None = None) -> Servers:
        """List the model servers that joined a cell."""
        return self._thread.run(self._client.servers(cell, timeout_s=timeout_s))

    def stats(self, name: str = "", *, timeout_s: float | None = None) -> CellStats:
        """Statistics of a model, a cell, or ("") everything this admin knows."""
        return self._thread.run(self._client.stats(name, timeout_s=timeout_s))

    def wait_for_ready(
        self, model_id: str, replicas: int = 1, timeout_s: float | None = None
    ) -> None:
        """Wait until at least `replicas` replicas are ready."""
        self._thread.run(self._client.wait_for_ready(model_id, replicas, timeout_s))

    def watch(self, model_id: str) -> Iterator[WatchEvent]:
        """Yield changes to the ready replicas, indefinitely."""
        return self._thread.iterate(self._client.watch(model_id))

    # Requests

    def generate(
        self, request: GenerateRequest, timeout_s: float | None = None
    ) -> Iterator[TokenChunk]:
        """Stream the answer; closing the iterator cancels it on the server."""
        return self._thread.iterate(self._client.generate(request, timeout_s))

    def tokenize(
        self,
        model_id: str,
        prompt: str | tuple[Message, ...],
        timeout_s: float | None = None,
    ) -> tuple[Sequence[int], int]:
        """Return the token ids of a text or chat, and the model's context length."""
        return self._thread.run(self._client.tokenize(model_id, prompt, timeout_s))

    def score(
        self,
        model_id: str,
        prefix: str,
        suffixes: Sequence[str],
        extra_inputs: ExtraInputs | None = None,
        timeout_s: float | None = None,
        *,
        route: Route = ANY_ROUTE,
    ) -> Scores:
        """Return the log-probability of each suffix after the prefix."""
        return self._thread.run(
            self._client.score(model_id, prefix, suffixes, extra_inputs, timeout_s, route=route)
        )

    def embed(
        self, model_id: str, inputs: Sequence[EmbedInput], timeout_s: float | None = None
    ) -> Vectors:
        """Return the vector of each input, given as text or token ids."""
        return self._thread.run(self._client.embed(model_id, inputs, timeout_s))

    def custom(
        self,
        model_id: str,
        request: bytes,
        method: str = "",
        extra_inputs: ExtraInputs | None = None,
        timeout_s: float | None = None,
        *,
        route: Route = ANY_ROUTE,
    ) -> bytes:
        """Call a custom model."""
        return self._thread.run(
            self._client.custom(model_id, request, method, extra_inputs, timeout_s, route=route)
        )

    def saxml_embed(
        self,
        model_id: str,
        text: str,
        extra_inputs: ExtraInputs | None = None,
        timeout_s: float | None = None,
        *,
        route: Route = ANY_ROUTE,
    ) -> Scores:
        """Saxml's LMService.Embed: return the vector of one text."""
        return self._thread.run(
            self._client.saxml_embed(model_id, text, extra_inputs, timeout_s, route=route)
        )

    def saxml_generate(
        self,
        model_id: str,
        text: str,
        extra_inputs: ExtraInputs | None = None,
        timeout_s: float | None = None,
        *,
        route: Route = ANY_ROUTE,
    ) -> Texts:
        """Saxml's LMService.Generate: return every sample with its score, best first."""
        return self._thread.run(
            self._client.saxml_generate(model_id, text, extra_inputs, timeout_s, route=route)
        )

    def saxml_generate_stream(
        self,
        model_id: str,
        text: str,
        extra_inputs: ExtraInputs | None = None,
        timeout_s: float | None = None,
        *,
        route: Route = ANY_ROUTE,
    ) -> Iterator[lm_pb2.GenerateStreamResponse]:
        """Saxml's LMService.GenerateStream: yield its messages."""
        return self._thread.iterate(
            self._client.saxml_generate_stream(model_id, text, extra_inputs, timeout_s, route=route)
        )
