"""Ollama's routes of models: lists and details, and changes: pull, create, copy, delete, push.

A pull of a model that is served succeeds. Other changes are those of `sax publish` and
`sax unpublish`, with the caller's own rights, and are off unless the gateway was started with
--ollama_changes.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TypedDict

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from http_gateway import problems
from http_gateway.backend import Backend
from http_gateway.body import read_body
from http_gateway.cell_client import CellClient
from http_gateway.limits import check_allowed
from http_gateway.ollama.bodies import (
    COPY,
    CREATE,
    DELETE,
    PULL,
    SHOW,
    OllamaCopy,
    OllamaCreate,
    OllamaNamed,
    OllamaPull,
)
from http_gateway.ollama.names import checkpoint_of, model_id, tagged, untagged
from http_gateway.ollama.reply import (
    OllamaDetails,
    OllamaModel,
    OllamaModelInfo,
    OllamaModels,
    OllamaProgress,
    OllamaVersion,
)
from http_gateway.ollama.schema import OllamaShow
from http_gateway.openapi import ALWAYS, JSON, LINES, WITH_MODEL, EventKinds, OllamaError, operation
from sax.chat import Content
from sax.distribution import version
from sax.errors import (
    DeadlineExceeded,
    InvalidRequest,
    LoadFailed,
    ModelNotFound,
    SaxError,
    UnsupportedParameter,
)
from sax.fields.field import RequestRoute
from sax.names import ModelId
from sax.types import (
    PLAIN_CHAT,
    ChatOptions,
    Image,
    Message,
    ModelSpec,
    PublishedModel,
    ServableStatus,
    Tool,
)

_NEVER = "9999-12-31T23:59:59Z"  # a model stays loaded until it is unpublished

_PROBES = {
    "tools": ChatOptions(tools=(Tool("probe"),)),
    "thinking": ChatOptions(chat_template_kwargs=json.dumps({"enable_thinking": True})),
}
# A white pixel, as PNG
_DOT = Image(
    base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAA"
        "AACklEQVR42mP4DwABAQEAHLCMmQAAAABJRU5ErkJggg=="
    )
)


class _Context(TypedDict, total=False):
    context_length: int


_METHODS = {"lm.generate": "completion", "lm.embed": "embedding"}

_told = partial(operation, errors=OllamaError)
_LIST, _VERSION = _told(OllamaModels), _told(OllamaVersion)
_SHOW = _told(OllamaModelInfo, statuses=WITH_MODEL, body=SHOW)
# Clients want one that knows what they ask for: VS Code's at least 0.6.4, others 0.9 for `think`.
# Log-probabilities came last of what the gateway answers, with this one.
OLLAMA_VERSION = "0.12.11"

_FLAG = "--ollama_changes"
_LOOK_S = 0.2  # polling interval
_MODEL_PATH = "auto"  # as the checkpoint says

_change_of = partial(operation, errors=OllamaError, statuses=(*WITH_MODEL, 409))
_PROGRESS = EventKinds(OllamaProgress, OllamaError)
_PULL = _change_of(OllamaProgress, body=PULL, lines=_PROGRESS)
_CREATE = _change_of(OllamaProgress, body=CREATE, lines=_PROGRESS)
_COPY, _DELETE = _change_of(body=COPY), _change_of(body=DELETE)
_REFUSED = operation(errors=OllamaError, statuses=(*ALWAYS, 400))
del _REFUSED["responses"][200]

# What to do instead, where changes are off
_INSTEAD = {
    "pull": "publish the model under a name: sax publish NAME auto CHECKPOINT",
    "create": "publish it with overrides: sax publish NAME auto CHECKPOINT KEY=VALUE",
    "copy": "publish it under its second name, too: sax publish NAME auto CHECKPOINT",
    "delete": "unpublish the model: sax unpublish NAME",
}


class OllamaModelRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/api", tags=["ollama"])
        add = router.add_api_route
        add("/tags", self.tags, methods=["GET"], **_LIST)
        add("/ps", self.running, methods=["GET"], **_LIST)
        add("/show", self.show, methods=["POST"], **_SHOW)
        add("/version", self.version, methods=["GET"], **_VERSION)
        return router

    async def tags(self) -> Response:
        """List every published model that the caller's key may use."""
        return _json({"models": listed(await self._backend.catalog.refresh())})

    async def running(self) -> Response:
        """List the models that have a ready replica."""
        return _json({"models": running(await self._backend.catalog.refresh())})

    async def show(self, request: Request) -> Response:
        """Return one model: where it comes from and what it can do."""
        raw = await read_body(request, RequestRoute.OLLAMA_SHOW)
        name = OllamaShow.model_validate_json(raw).asked
        client = self._backend.client
        model = await client.list(await self._backend.catalog.resolve(untagged(name)))
        work = capabilities_of(client, model, self._backend.limit_s(request))
        context, capabilities = await self._backend.run(request, work)
        return _json(shown(model, context, capabilities))

    async def version(self) -> Response:
        """Return the version of Ollama whose API this is, and that of sax."""
        return _json({"version": OLLAMA_VERSION, "server": f"sax {version()}"})


def _json(reply: object) -> Response:
    return Response(msgspec.json.encode(reply), media_type=JSON)


async def capabilities_of(
    client: CellClient, model: PublishedModel, limit_s: float
) -> tuple[int | None, Sequence[str]]:
    """Return the context length and the capabilities of a model.

    None, and what its methods tell: no replica is ready. Raises SaxError.
    """
    told = [name for method, name in _METHODS.items() if method in model.methods]
    if not model.ready_replicas or "completion" not in told:
        return None, told
    _, context = await client.tokenize(model.spec.model_id, "Hi", limit_s)
    for name, options in _PROBES.items():
        if await _takes(client, model.spec.model_id, "Hi", options, limit_s):
            told.append(name)
    if await _takes(client, model.spec.model_id, (_DOT, "Hi"), PLAIN_CHAT, limit_s):
        told.append("vision")
    return context, told


async def _takes(
    client: CellClient, model_id: str, content: Content, options: ChatOptions, limit_s: float
) -> bool:
    try:
        await client.tokenize(model_id, (Message("user", content),), limit_s, chat=options)
    except InvalidRequest:
        return False
    return True


def listed(models: Sequence[PublishedModel]) -> list[OllamaModel]:
    return [
        {
            "name": name,
            "model": name,
            "modified_at": _time(model),
            "size": 0,  # the cell does not record it
            "digest": model.spec.version,
            "details": _details(model.spec),
        }
        for name, model in zip(tagged(models), models, strict=True)
    ]


def running(models: Sequence[PublishedModel]) -> list[OllamaModel]:
    """Return those with a ready replica."""
    return [
        {**entry, "expires_at": _NEVER, "size_vram": 0, **_context(model)}
        for entry, model in zip(listed(models), models, strict=True)
        if model.ready_replicas
    ]


def shown(
    model: PublishedModel, context: int | None, capabilities: Sequence[str]
) -> OllamaModelInfo:
    """context: tokens of prompt and answer at most; None: not known."""
    spec = model.spec
    info: dict[str, object] = {
        "general.architecture": spec.model_path,
        "general.basename": spec.model_id.rpartition("/")[2],
    }
    if context is not None:
        info[f"{spec.model_path}.context_length"] = context
    return {
        "modelfile": f"FROM {spec.checkpoint}",
        "parameters": "",  # a publication has none that requests would not override
        "template": "",  # the model server has it
        "details": _details(spec),
        "model_info": info,
        "capabilities": [*capabilities],
        "modified_at": _time(model),
    }


def _time(model: PublishedModel) -> str:
    """Return when the current version was published, as RFC 3339 has it."""
    return datetime.fromtimestamp(model.published_at_s, UTC).isoformat().replace("+00:00", "Z")


def _context(model: PublishedModel) -> _Context:
    return {"context_length": model.max_context} if model.max_context else {}


def _details(spec: ModelSpec) -> OllamaDetails:
    return {
        "parent_model": "",
        "format": "gguf" if spec.checkpoint.endswith(".gguf") else "",
        "family": spec.model_path,
        "families": [spec.model_path],
        "parameter_size": "",
        "quantization_level": json.loads(spec.overrides.get("QUANTIZE", '""')) or "",
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
                f"/api/{change} is off: start the gateway with {_FLAG}, or {_INSTEAD[change]}"
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
