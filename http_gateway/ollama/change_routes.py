"""Ollama's routes that change the models there are: pull, create, copy, delete, push.

A pull of a model that is served succeeds. Other changes are those of `sax publish` and
`sax unpublish`, with the caller's own rights, and are off unless the gateway was started with
--ollama_changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from functools import partial

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from http_gateway import problems
from http_gateway.backend import Backend
from http_gateway.body import read_body
from http_gateway.limits.models import check_allowed
from http_gateway.ollama.bodies import COPY, CREATE, DELETE, PULL
from http_gateway.ollama.changes import OllamaCopy, OllamaCreate, OllamaNamed, OllamaPull
from http_gateway.ollama.names import checkpoint_of, model_id, untagged
from http_gateway.ollama.reply import OllamaProgress
from http_gateway.openapi import ALWAYS, JSON, LINES, WITH_MODEL, EventKinds, OllamaError, operation
from sax.errors import (
    DeadlineExceeded,
    LoadFailed,
    ModelNotFound,
    SaxError,
    UnsupportedParameter,
)
from sax.fields.field import RequestRoute
from sax.names import ModelId
from sax.types import PublishedModel, ServableStatus

FLAG = "--ollama_changes"
_LOOK_S = 0.2  # polling interval
_MODEL_PATH = "auto"  # as the checkpoint says

_told = partial(operation, errors=OllamaError, statuses=(*WITH_MODEL, 409))
_PROGRESS = EventKinds(OllamaProgress, OllamaError)
_PULL = _told(OllamaProgress, body=PULL, lines=_PROGRESS)
_CREATE = _told(OllamaProgress, body=CREATE, lines=_PROGRESS)
_COPY, _DELETE = _told(body=COPY), _told(body=DELETE)
_REFUSED = operation(errors=OllamaError, statuses=(*ALWAYS, 400))
del _REFUSED["responses"][200]

# What to do instead, where changes are off
INSTEAD = {
    "pull": "publish the model under a name: sax publish NAME auto CHECKPOINT",
    "create": "publish it with overrides: sax publish NAME auto CHECKPOINT KEY=VALUE",
    "copy": "publish it under its second name, too: sax publish NAME auto CHECKPOINT",
    "delete": "unpublish the model: sax unpublish NAME",
}


class OllamaChangeRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/api", tags=["ollama"])
        add = router.add_api_route
        add("/pull", self.pull, methods=["POST"], **_PULL)
        add("/create", self.create, methods=["POST"], **_CREATE)
        add("/copy", self.copy, methods=["POST"], **_COPY)
        add("/delete", self.delete, methods=["DELETE"], **_DELETE)
        add("/push", self.push, methods=["POST"], status_code=400, **_REFUSED)
        return router

    async def pull(self, request: Request) -> Response:
        """Succeed for a model that is served; publish another, and wait until it is ready."""
        raw = await read_body(request, RequestRoute.OLLAMA_PULL)
        body = OllamaPull.model_validate_json(raw)
        try:
            found = await self._backend.catalog.resolve(untagged(body.asked))
        except ModelNotFound:
            self._check_on("pull")
            checkpoint = checkpoint_of(body.asked)
            found = await self._publish(body.asked, _MODEL_PATH, checkpoint, {})
        return await self._until_ready(request, found, streamed=body.stream is not False)

    async def create(self, request: Request) -> Response:
        """Publish a model's checkpoint under another name, and wait until it is ready."""
        self._check_on("create")
        raw = await read_body(request, RequestRoute.OLLAMA_CREATE)
        body = OllamaCreate.model_validate_json(raw)
        source = await self._model(body.source)
        made = await self._publish_again(source, body.asked)
        return await self._until_ready(request, made, streamed=body.stream is not False)

    async def copy(self, request: Request) -> Response:
        """Publish a model's checkpoint under another name."""
        self._check_on("copy")
        raw = await read_body(request, RequestRoute.OLLAMA_COPY)
        body = OllamaCopy.model_validate_json(raw)
        await self._publish_again(await self._model(body.source), body.destination)
        return Response()

    async def delete(self, request: Request) -> Response:
        """Unpublish a model."""
        self._check_on("delete")
        raw = await read_body(request, RequestRoute.OLLAMA_DELETE)
        body = OllamaNamed.model_validate_json(raw)
        model = await self._model(body.asked)
        await self._backend.client.unpublish(model.spec.model_id)
        return Response()

    async def push(self) -> Response:
        """Refuse: models are kept where their checkpoints are."""
        raise UnsupportedParameter(
            "/api/push is not supported: sax convert writes a checkpoint, which any tool can upload"
        )

    def _check_on(self, change: str) -> None:
        """Raise UnsupportedParameter where changes are off."""
        if not self._backend.config.ollama_changes:
            raise UnsupportedParameter(
                f"/api/{change} is off: start the gateway with {FLAG}, or {INSTEAD[change]}"
            )

    async def _model(self, name: str) -> PublishedModel:
        found = await self._backend.catalog.resolve(untagged(name))
        return await self._backend.client.list(found)

    async def _publish_again(self, source: PublishedModel, name: str) -> str:
        spec = source.spec
        return await self._publish(name, spec.model_path, spec.checkpoint, spec.overrides)

    async def _publish(
        self, name: str, model_path: str, checkpoint: str, overrides: Mapping[str, str]
    ) -> str:
        """Return the full name. Raises SaxError."""
        made = model_id(name, self._backend.catalog.models)
        check_allowed(made)
        await self._backend.client.publish(made, model_path, checkpoint, 1, overrides)
        return made

    async def _until_ready(self, request: Request, name: str, *, streamed: bool) -> Response:
        limit_s = self._backend.limit_s(request)
        if streamed:
            return StreamingResponse(self._lines(name, limit_s), media_type=LINES)

        async def wait() -> None:
            async for _ in self._progress(name, limit_s):
                pass

        await self._backend.run(request, wait())
        return Response(msgspec.json.encode(OllamaProgress("success")), media_type=JSON)

    async def _lines(self, name: str, limit_s: float) -> AsyncGenerator[bytes, None]:
        try:
            async for status in self._progress(name, limit_s):
                yield msgspec.json.encode(OllamaProgress(status)) + b"\n"
        except SaxError as error:
            yield problems.ollama_error(problems.describe(error)) + b"\n"

    async def _progress(self, name: str, limit_s: float) -> AsyncGenerator[str, None]:
        """Tell what a model's first replica waits for, each text once, then success."""
        told = ""
        try:
            async with asyncio.timeout(limit_s):
                while not (model := await self._backend.client.list(name)).ready_replicas:
                    if (status := _status(model)) != told:
                        yield (told := status)
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise DeadlineExceeded(f"{name} is not ready after {limit_s:g} s: {told}") from None
        yield "success"


def _status(model: PublishedModel) -> str:
    """Raises LoadFailed with the reason."""
    for replica in model.replicas:
        if replica.status is ServableStatus.FAILED:
            last = ModelId.parse(model.spec.model_id).model
            raise LoadFailed(f"{last} failed to load: {replica.reason}; sax unpublish {last}")
    reasons = [replica.reason for replica in model.replicas if replica.reason]
    return f"loading: {reasons[0]}" if reasons else "loading"
