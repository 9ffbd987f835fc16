"""The gateway's ASGI application, assembled from its routes and middleware.

All dependencies are passed in; the caller closes the client.
"""

from __future__ import annotations

from fastapi import FastAPI, Request
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from http_gateway.auth import Auth
from http_gateway.backend import Backend
from http_gateway.catalog import Catalog
from http_gateway.cell_client import CellClient
from http_gateway.client_address import parse_networks
from http_gateway.config import GatewayConfig
from http_gateway.envelope import RequestEnvelope
from http_gateway.limits.limiter import Limiter
from http_gateway.limits.middleware import Limits
from http_gateway.metrics import GatewayMetrics
from http_gateway.openai.embeddings import EmbeddingRoutes
from http_gateway.openai.relevance import RelevanceRoutes
from http_gateway.openai.routes import OpenAiRoutes
from http_gateway.ops import OpsRoutes
from http_gateway.problems import answer
from http_gateway.saxml.generation_1 import SaxmlGeneration1Routes
from http_gateway.saxml.routes import SaxmlRoutes
from sax.auth.authentication import NO_AUTHENTICATION, Authentication
from sax.errors import SaxError


def create_app(
    client: CellClient,
    config: GatewayConfig,
    authentication: Authentication = NO_AUTHENTICATION,
) -> FastAPI:
    metrics, catalog = GatewayMetrics(), Catalog(client)
    generation = config.saxml_generation
    backend = Backend(client=client, catalog=catalog, config=config, metrics=metrics)
    saxml = SaxmlRoutes(backend) if generation == 2 else SaxmlGeneration1Routes(backend)
    # No /docs: its pages load scripts from a CDN. /openapi.json is served.
    app = FastAPI(title="sax", docs_url=None, redoc_url=None, redirect_slashes=False)
    app.include_router(OpsRoutes(catalog, metrics, generation, closed=authentication.on).router())
    app.include_router(saxml.router())
    app.include_router(OpenAiRoutes(backend).router())
    app.include_router(EmbeddingRoutes(backend).router())
    app.include_router(RelevanceRoutes(backend).router())
    app.add_middleware(Limits, limiter=Limiter(), metrics=metrics, generation=generation)
    app.add_middleware(
        Auth,
        authentication=authentication,
        generation=generation,
        trusted_proxies=parse_networks(config.trusted_proxies),
    )
    app.add_middleware(RequestEnvelope, config=config, metrics=metrics)

    async def explain(request: Request, error: Exception) -> Response:
        return answer(request.url.path, error, generation)

    for kind in (SaxError, ValidationError, HTTPException):
        app.add_exception_handler(kind, explain)
    return app
