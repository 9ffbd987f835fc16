"""The gateway's ASGI application, assembled from its routes and middleware.

All dependencies are passed in; the caller closes the client.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial

from fastapi import Depends, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from http_gateway.anthropic.routes import AnthropicRoutes
from http_gateway.auth import Auth, parse_networks
from http_gateway.backend import Backend
from http_gateway.catalog import Catalog
from http_gateway.cell_client import CellClient
from http_gateway.config import GatewayConfig
from http_gateway.docs_page import DocsRoutes
from http_gateway.envelope import RequestEnvelope
from http_gateway.images.image_fetcher import ImageFetcher, MediaHosts
from http_gateway.limits import Limiter, Limits
from http_gateway.llama_cpp import LlamaCppRoutes
from http_gateway.mcp import McpRoutes, McpServers, read_mcp_servers
from http_gateway.metrics import GatewayMetrics
from http_gateway.modes import HeadRequests, LenientFields, OwnPages, Sessions, allow_origins
from http_gateway.ollama.model_routes import OllamaChangeRoutes, OllamaModelRoutes
from http_gateway.ollama.routes import OllamaRoutes
from http_gateway.openai.audio import AudioRoutes
from http_gateway.openai.batches.kept_batches import KeptBatches
from http_gateway.openai.batches.line_runner import Handler, LineRunner, LineSlots
from http_gateway.openai.batches.routes import BatchRoutes
from http_gateway.openai.batches.worker import BatchWorker
from http_gateway.openai.conversations import ConversationRoutes
from http_gateway.openai.files.kept_files import KeptFiles
from http_gateway.openai.files.routes import FileRoutes
from http_gateway.openai.passes.embeddings import EmbeddingRoutes
from http_gateway.openai.passes.relevance import RelevanceRoutes
from http_gateway.openai.responses.background import BackgroundRuns
from http_gateway.openai.responses.kept_conversations import CONVERSATIONS, KeptConversations
from http_gateway.openai.responses.routes import ResponseRoutes
from http_gateway.openai.responses.stored import ENDS, FOLDER, StoredResponses
from http_gateway.openai.routes import OpenAiRoutes
from http_gateway.openai.speech import SpeechRoutes
from http_gateway.openai.stored import KeptSpace, PatientStore, refuse_batches
from http_gateway.openai.tokens import TokenRoutes
from http_gateway.openapi import Schema, describe_operations, with_components
from http_gateway.operators import NotedRequests, OpenRequests, OperatorRoutes
from http_gateway.ops import OpsRoutes
from http_gateway.page.routes import CellRoutes, PageRoutes, WatchedCell
from http_gateway.problems import answer
from http_gateway.saxml.generation_1 import SaxmlGeneration1Routes
from http_gateway.saxml.routes import SaxmlRoutes
from sax.auth.authentication import NO_AUTHENTICATION, Authentication
from sax.distribution import version
from sax.errors import SaxError
from sax.fields.field import RequestRoute
from sax.storage.object_store import MeasuredStore
from sax.tracing import NO_TRACER, Tracer

SPACE_FOLDERS = (FOLDER, ENDS, CONVERSATIONS)  # what counts as kept for a key
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def create_app(
    client: CellClient,
    config: GatewayConfig,
    authentication: Authentication = NO_AUTHENTICATION,
    store: MeasuredStore | None = None,
    tracer: Tracer = NO_TRACER,
    mcp: McpServers | None = None,
) -> FastAPI:
    """Its `state.batches` runs batches while its `running` is entered, and its `state.background`
    looks after responses in the background.

    store: of what clients keep here; None: they can keep nothing. mcp: None: those of the config.
    """
    metrics, catalog = GatewayMetrics(), Catalog(client)
    generation = config.saxml_generation
    backend = Backend(
        client=client,
        catalog=catalog,
        config=config,
        metrics=metrics,
        images=ImageFetcher(MediaHosts.parse(config.media_hosts)),
    )
    # FastAPI's own pages load scripts from a CDN, and need its own /openapi.json.
    app = FastAPI(
        title="sax", openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.openapi = cache(partial(_document, app))
    mcp = mcp or McpServers(urls=read_mcp_servers(config.mcp_servers))
    openai, embeddings, limiter = OpenAiRoutes(backend), EmbeddingRoutes(backend), Limiter()
    running, cell = OpenRequests(), WatchedCell(client)
    for routes in (
        OpsRoutes(catalog, metrics, generation, closed=authentication.on),
        DocsRoutes(app.openapi),
        PageRoutes(),
        CellRoutes(cell),
        OperatorRoutes(client, running, cell, config.trace_url),
        McpRoutes(mcp),
        SaxmlRoutes(backend) if generation == 2 else SaxmlGeneration1Routes(backend),
        openai,
        AnthropicRoutes(backend, mcp),
        OllamaRoutes(backend),
        OllamaModelRoutes(backend),
        OllamaChangeRoutes(backend),
        embeddings,
    ):
        app.include_router(routes.router())
    app.state.batches = _keep(app, backend, authentication, limiter, store, openai, embeddings, mcp)
    for kind in (AudioRoutes, SpeechRoutes, RelevanceRoutes, TokenRoutes, LlamaCppRoutes):
        app.include_router(kind(backend).router())
    _add_middleware(app, backend, authentication, limiter, tracer, running)
    _explain_errors(app, generation)
    return app


def _add_middleware(
    app: FastAPI,
    backend: Backend,
    authentication: Authentication,
    limiter: Limiter,
    tracer: Tracer,
    running: OpenRequests,
) -> None:
    """The last one sees a request first."""
    config, metrics = backend.config, backend.metrics
    generation = config.saxml_generation
    app.add_middleware(HeadRequests)
    app.add_middleware(Sessions, generation=generation)
    app.add_middleware(Limits, limiter=limiter, metrics=metrics, generation=generation)
    app.add_middleware(NotedRequests, running=running)
    app.add_middleware(
        Auth,
        authentication=authentication,
        generation=generation,
        trusted_proxies=parse_networks(config.trusted_proxies),
    )
    app.add_middleware(
        OwnPages,
        host=config.host,
        keys=authentication.on,
        origins=config.cors_origins,
        generation=generation,
    )
    app.add_middleware(RequestEnvelope, config=config, metrics=metrics, tracer=tracer)
    app.add_middleware(LenientFields, below="/" if config.lenient else "/api/")
    allow_origins(app, config.cors_origins)


def _explain_errors(app: FastAPI, generation: int) -> None:
    async def explain(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code == 405:
            error = HTTPException(405, headers={"Allow": methods_of(app.routes, request.scope)})
        return answer(request.url.path, error, generation)

    for kind in (SaxError, ValidationError, HTTPException):
        app.add_exception_handler(kind, explain)


def _keep(
    app: FastAPI,
    backend: Backend,
    authentication: Authentication,
    limiter: Limiter,
    store: MeasuredStore | None,
    openai: OpenAiRoutes,
    embeddings: EmbeddingRoutes,
    mcp: McpServers,
) -> BatchWorker:
    """Add the routes of what is kept for clients."""
    config, patient = backend.config, PatientStore(store) if store is not None else None
    space = KeptSpace(store, SPACE_FOLDERS, config.max_key_bytes)
    stored = StoredResponses(store, config.response_ttl_s, space=space)
    conversations = KeptConversations(store, config.response_ttl_s, space)
    runs = app.state.background = BackgroundRuns(stored, space, limiter)
    files = KeptFiles(store, most_bytes=config.max_key_bytes)
    batches, responses = (
        KeptBatches(store),
        ResponseRoutes(backend, stored, runs, conversations, mcp),
    )
    handlers: dict[str, Handler] = {
        RequestRoute.CHAT: openai.chat,
        RequestRoute.COMPLETIONS: openai.completions,
        RequestRoute.EMBEDDINGS: embeddings.embed,
        RequestRoute.RESPONSES: responses.create,
    }
    wanted = config.batches == "on"
    worker = BatchWorker(
        KeptBatches(patient if wanted else None),
        KeptFiles(patient),
        LineRunner(handlers, backend.catalog, authentication, limiter=limiter),
        (stored.sweep, conversations.sweep, files.sweep, batches.sweep)
        if store is not None
        else (),
        slots=LineSlots(config.batch_concurrency, backend.metrics.busy),
    )
    app.include_router(responses.router())
    app.include_router(ConversationRoutes(conversations).router())
    forbidden = [] if wanted else [Depends(refuse_batches)]
    for routes in (FileRoutes(files), BatchRoutes(batches, files, worker.poke)):
        app.include_router(routes.router(), dependencies=forbidden)
    return worker


def _document(app: FastAPI) -> Schema:
    describe_operations()
    routes = get_openapi(title=app.title, version=version(), routes=app.routes)
    return with_components(routes)


def methods_of(routes: Iterable[BaseRoute], scope: Scope) -> str:
    """Return the methods that a path has, for the header `Allow`: HEAD wherever GET is."""
    found = [
        method
        for method in _METHODS
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in routes)
    ]
    return ", ".join(found).replace("GET", "GET, HEAD")
