"""Client of one cell for asyncio: operator calls go to the admin, requests to replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType

from sax.client.admin import Admin
from sax.client.attempts import ANY_ROUTE, RetryLimits, Route
from sax.client.connection import ModelServerConnection
from sax.client.history import CellHistory, Events, Versions, merging
from sax.client.locator import Locator
from sax.client.readiness import not_ready, why_not
from sax.client.watch import WatchEvent, follow
from sax.errors import DeadlineExceeded, InvalidRequest, ModelNotFound, NotFound, SaxError
from sax.names import CellId, ModelId, check_checkpoint, check_model_path, nearest
from sax.proto import admin_pb2, custom_pb2, lm_pb2, tokens_pb2
from sax.scaling import Scaling, settle
from sax.types import (
    CellStats,
    Embedded,
    EmbedInput,
    GenerateRequest,
    JoinedServer,
    Message,
    ModelSpec,
    PublishedModel,
    TokenChunk,
)
from sax.wire import codec
from sax.wire.extra_inputs import ExtraInputs

_WAIT_ROUND_S = 30.0  # per WaitForReady call; longer waits take several

Models = list[PublishedModel]
Servers = list[JoinedServer]
Scores = list[float]
Texts = list[tuple[str, float]]
Vectors = list[list[float]]


class AsyncClient:
    """Client of one cell. Create, use and close it in one event loop."""

    def __init__(
        self, admin: str | None = None, *, patience: RetryLimits | None = None, preferred: str = ""
    ) -> None:
        """`admin` is host:port of the cell's admin server; None finds it (`sax.client.location`).
        `preferred` is the host:port of a model server to use first while it is ready."""
        self._admin = Admin(admin)
        self._history = CellHistory(self._admin)
        self._locator = Locator(self._admin, self._explain, patience, preferred)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the client; requests in progress fail with Cancelled."""
        await self._locator.close()
        await self._admin.close()

    # Operators

    async def publish(
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
        """Publish a model; returns once that is durable, and replicas load afterwards.

        Override values are JSON. With `autoscaling`, `replicas` is the initial number.

        Raises ModelExists, InvalidName, InvalidRequest, AdminUnavailable.
        """
        spec = ModelSpec(
            model_id=str(ModelId.parse(model_id)),
            model_path=check_model_path(model_path),
            checkpoint=check_checkpoint(checkpoint),
            replicas=_check_replicas(replicas),
            overrides=dict(overrides or {}),
            autoscaling=settle(autoscaling, None, replicas),
        )
        request = admin_pb2.PublishRequest(model=codec.encode_spec(spec))
        await self._admin.change("Publish", request, admin_pb2.PublishResponse, timeout_s)

    async def update(
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
        """Change the given fields and keep the rest; reloads only if what is loaded changes.

        The model path cannot change: another one is an error. Concurrent updates of different
        fields are merged. With a `revision` (from `list`), only that revision is changed:
        StaleRevision if another change came first. `autoscaling="off"` returns to the fixed number
        of replicas.
        """
        if revision is not None and not 0 < revision < 2**63:
            raise InvalidRequest(
                f"revision is {revision}; it must be one from `list`, 1 or more",
                param="revision",
            )

        async def merge_and_write() -> None:
            old = (await self.list(model_id, timeout_s=timeout_s)).spec
            spec = replace(
                old,
                model_path=old.model_path if model_path is None else check_model_path(model_path),
                checkpoint=old.checkpoint if checkpoint is None else check_checkpoint(checkpoint),
                replicas=old.replicas if replicas is None else _check_replicas(replicas),
                overrides=old.overrides if overrides is None else dict(overrides),
                acls=old.acls if acls is None else dict(acls),
                admin_acl=old.admin_acl if admin_acl is None else admin_acl,
                autoscaling=settle(
                    autoscaling, old.autoscaling, old.replicas if replicas is None else replicas
                ),
                revision=old.revision if revision is None else revision,
            )
            request = admin_pb2.UpdateRequest(model=codec.encode_spec(spec))
            await self._admin.change("Update", request, admin_pb2.UpdateResponse, timeout_s)

        await (merging(merge_and_write) if revision is None else merge_and_write())

    async def unpublish(self, model_id: str, *, timeout_s: float | None = None) -> None:
        """Unpublish a model; returns once durable, replicas unload after. Raises ModelNotFound."""
        request = admin_pb2.UnpublishRequest(model_id=str(ModelId.parse(model_id)))
        await self._admin.change("Unpublish", request, admin_pb2.UnpublishResponse, timeout_s)

    async def rollback(
        self, model_id: str, version: str = "", *, timeout_s: float | None = None
    ) -> str:
        """Return to a version ("": the one before the current) and return its id, once durable.

        Only what is loaded is rolled back: replicas, ACLs, placement and autoscaling stay. Raises
        ModelNotFound, NotFound for an unknown version, InvalidRequest.
        """
        return await self._history.rollback(model_id, version, timeout_s)

    async def versions(self, model_id: str, *, timeout_s: float | None = None) -> Versions:
        """List the versions a model can roll back to, newest first. Raises ModelNotFound."""
        return await self._history.versions(model_id, timeout_s)

    async def events(
        self,
        model_id: str = "",
        *,
        before: int = 0,
        limit: int = 0,
        timeout_s: float | None = None,
    ) -> Events:
        """List changes with author and time, newest first: of one model or of all.

        The model may be unpublished. `before` is an event number, for paging back; `limit` 0 means
        100.
        """
        return await self._history.events(model_id, before, limit, timeout_s)

    async def list(self, model_id: str, *, timeout_s: float | None = None) -> PublishedModel:
        """Return one model with its replicas. Raises ModelNotFound with the nearest names."""
        ModelId.parse(model_id)
        try:
            reply = await self._list(model_id, timeout_s)
        except ModelNotFound:
            raise
        except NotFound as exc:  # an admin that does not send our error classes
            raise await self._unknown(model_id) from exc
        if not reply.published_models:
            raise await self._unknown(model_id)
        return codec.decode_published(reply.published_models[0])

    async def list_all(self, cell: str | None = None, *, timeout_s: float | None = None) -> Models:
        """List the models of a cell (/sax/<cell>; None: the admin's own)."""
        reply = await self._list(_cell(cell), timeout_s)
        return [codec.decode_published(model) for model in reply.published_models]

    async def servers(self, cell: str | None = None, *, timeout_s: float | None = None) -> Servers:
        """List the model servers that joined a cell."""
        reply = await self._list(_cell(cell), timeout_s)
        return [codec.decode_joined(server) for server in reply.servers]

    async def stats(self, name: str = "", *, timeout_s: float | None = None) -> CellStats:
        """Statistics of a model, a cell, or ("") everything this admin knows."""
        request = admin_pb2.StatsRequest(model_id=name)
        reply = await self._admin.read("Stats", request, admin_pb2.StatsResponse, timeout_s)
        return codec.decode_stats(reply)

    async def wait_for_ready(
        self, model_id: str, replicas: int = 1, timeout_s: float | None = None
    ) -> None:
        """Wait until at least `replicas` replicas are ready.

        Raises DeadlineExceeded with the reason they are not, ModelNotFound.
        """
        ModelId.parse(model_id)
        request = admin_pb2.WaitForReadyRequest(
            model_id=model_id, num_replicas=_check_replicas(replicas)
        )
        loop = asyncio.get_running_loop()
        end = None if timeout_s is None else loop.time() + timeout_s
        while True:
            round_s = _WAIT_ROUND_S if end is None else min(_WAIT_ROUND_S, end - loop.time())
            try:
                if round_s > 0:
                    await self._admin.read(
                        "WaitForReady", request, admin_pb2.WaitForReadyResponse, round_s
                    )
                    return
            except DeadlineExceeded:
                pass
            if end is not None and loop.time() >= end:
                why = why_not(await self.list(model_id))
                raise DeadlineExceeded(f"{model_id} is not ready after {timeout_s:g} s: {why}")

    async def watch(self, model_id: str) -> AsyncGenerator[WatchEvent, None]:
        """Yield changes to the ready replicas, indefinitely; survives restarts of the admin.

        Raises ModelNotFound if the model is not published, or once it is unpublished.
        """
        ModelId.parse(model_id)
        try:
            async with aclosing(follow(self._admin, model_id)) as answers:
                async for _, events in answers:
                    for event in events:
                        yield event
        except NotFound as exc:
            raise await self._explain(model_id) from exc

    # Requests

    def generate(
        self, request: GenerateRequest, timeout_s: float | None = None
    ) -> AsyncGenerator[TokenChunk, None]:
        """Stream the answer; closing the iterator cancels it on the server.

        Raises ModelNotFound, ModelNotReady, QueueFull, InvalidRequest and its subclasses,
        ReplicaLost if a replica dies mid-answer, DeadlineExceeded after timeout_s.
        """
        return self._locator.generate(request, timeout_s)

    async def generate_to(
        self,
        request: GenerateRequest,
        sink: Callable[[TokenChunk], None],
        timeout_s: float | None = None,
    ) -> None:
        """`generate` by callback, at less than half the cost per token: `sink` gets each chunk as
        it arrives and must not block. Cancelling this task cancels the answer on the server."""
        await self._locator.generate_to(request, sink, timeout_s)

    async def tokenize(
        self,
        model_id: str,
        prompt: str | tuple[Message, ...],
        timeout_s: float | None = None,
    ) -> tuple[Sequence[int], int]:
        """Return the token ids of a text or chat as the model sees them, and its context length."""
        request = codec.encode_tokenize(model_id, prompt)

        async def ask(
            replica: ModelServerConnection, left_s: float | None
        ) -> tokens_pb2.TokenizeResponse:
            path = "/sax.tokens.TokenService/Tokenize"
            return await replica.call(path, request, tokens_pb2.TokenizeResponse, left_s)

        reply = await self._locator.call(model_id, ask, timeout_s)
        return tuple(reply.ids), reply.max_context

    async def score(
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
        request = codec.encode_score(model_id, prefix, suffixes, extra_inputs)

        async def ask(replica: ModelServerConnection, left_s: float | None) -> lm_pb2.ScoreResponse:
            path = "/sax.server.lm.LMService/Score"
            return await replica.call(path, request, lm_pb2.ScoreResponse, left_s)

        reply = await self._locator.call(model_id, ask, timeout_s, route)
        return [*reply.logp]

    async def embed(
        self, model_id: str, inputs: Sequence[EmbedInput], timeout_s: float | None = None
    ) -> Vectors:
        """Return the vector of each input, given as text or token ids.

        Raises PromptTooLong for an input longer than the model's context, InvalidRequest for a
        model without embeddings.
        """
        return (await self.embed_counted(model_id, inputs, timeout_s)).vectors

    async def embed_counted(
        self, model_id: str, inputs: Sequence[EmbedInput], timeout_s: float | None = None
    ) -> Embedded:
        """Like `embed`, with the number of input tokens."""
        request = codec.encode_embed(model_id, inputs)

        async def ask(
            replica: ModelServerConnection, left_s: float | None
        ) -> tokens_pb2.EmbedResponse:
            path = "/sax.tokens.TokenService/Embed"
            return await replica.call(path, request, tokens_pb2.EmbedResponse, left_s)

        return codec.decode_embedded(await self._locator.call(model_id, ask, timeout_s))

    async def custom(
        self,
        model_id: str,
        request: bytes,
        method: str = "",
        extra_inputs: ExtraInputs | None = None,
        timeout_s: float | None = None,
        *,
        route: Route = ANY_ROUTE,
    ) -> bytes:
        """Call Saxml's CustomService.Custom on a custom model.

        Without a method, calls the one named `custom`, or the only one.
        """
        message = codec.encode_custom(model_id, request, method, extra_inputs)

        async def ask(
            replica: ModelServerConnection, left_s: float | None
        ) -> custom_pb2.CustomResponse:
            path = "/sax.server.custom.CustomService/Custom"
            return await replica.call(path, message, custom_pb2.CustomResponse, left_s)

        return (await self._locator.call(model_id, ask, timeout_s, route)).response

    async def saxml_embed(
        self,
        model_id: str,
        text: str,
        extra_inputs: ExtraInputs | None = None,
        timeout_s: float | None = None,
        *,
        route: Route = ANY_ROUTE,
    ) -> Scores:
        """Saxml's LMService.Embed: return the vector of one text."""
        request = codec.encode_embed_question(model_id, text, extra_inputs)

        async def ask(replica: ModelServerConnection, left_s: float | None) -> lm_pb2.EmbedResponse:
            path = "/sax.server.lm.LMService/Embed"
            return await replica.call(path, request, lm_pb2.EmbedResponse, left_s)

        return [*(await self._locator.call(model_id, ask, timeout_s, route)).embedding]

    async def saxml_generate(
        self,
        model_id: str,
        text: str,
        extra_inputs: ExtraInputs | None = None,
        timeout_s: float | None = None,
        *,
        route: Route = ANY_ROUTE,
    ) -> Texts:
        """Saxml's LMService.Generate: return every sample with its score, best first."""
        request = codec.encode_question(model_id, text, extra_inputs)

        async def ask(
            replica: ModelServerConnection, left_s: float | None
        ) -> lm_pb2.GenerateResponse:
            path = "/sax.server.lm.LMService/Generate"
            return await replica.call(path, request, lm_pb2.GenerateResponse, left_s)

        reply = await self._locator.call(model_id, ask, timeout_s, route)
        return [(answer.text, answer.score) for answer in reply.texts]

    def saxml_generate_stream(
        self,
        model_id: str,
        text: str,
        extra_inputs: ExtraInputs | None = None,
        timeout_s: float | None = None,
        *,
        route: Route = ANY_ROUTE,
    ) -> AsyncGenerator[lm_pb2.GenerateStreamResponse, None]:
        """Saxml's LMService.GenerateStream: yield its messages."""
        request = codec.encode_question(model_id, text, extra_inputs)

        def ask(
            replica: ModelServerConnection, left_s: float | None
        ) -> AsyncGenerator[lm_pb2.GenerateStreamResponse, None]:
            path = "/sax.server.lm.LMService/GenerateStream"
            return replica.call_stream(path, request, lm_pb2.GenerateStreamResponse, left_s)

        return self._locator.stream(model_id, ask, timeout_s, route)

    # Internal

    async def _list(self, name: str, timeout_s: float | None) -> admin_pb2.ListResponse:
        request = admin_pb2.ListRequest(model_id=name)
        return await self._admin.read("List", request, admin_pb2.ListResponse, timeout_s)

    async def _explain(self, model_id: str) -> SaxError:
        """Return the error that says why no replica can take a request."""
        try:
            return not_ready(await self.list(model_id))
        except SaxError as error:
            return error

    async def _unknown(self, model_id: str) -> ModelNotFound:
        known = [model.spec.model_id for model in await self.list_all()]
        near = nearest(model_id, known)
        hint = f"the nearest names are {', '.join(near)}" if near else "`sax ls` shows which are"
        return ModelNotFound(f"{model_id} is not published; {hint}", param="model")


def _cell(cell: str | None) -> str:
    return "" if cell is None else str(CellId.parse(cell))


def _check_replicas(replicas: int) -> int:
    if not 0 <= replicas < 2**31:
        raise InvalidRequest(f"replicas is {replicas}; it must be 0 or more", param="replicas")
    return replicas
