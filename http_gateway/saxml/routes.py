"""Saxml's HTTP routes, generation 2, as used by the curls of Saxml's tutorial.

Each decodes the request, calls the cell and encodes the reply; `problems` formats errors.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TypeVar

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from http_gateway.backend import Backend
from http_gateway.body import read_body
from http_gateway.limits import check_allowed, visible, visible_events
from http_gateway.saxml import described
from http_gateway.saxml.schema import (
    CanaryBody,
    CellBody,
    EventsQuery,
    GenerateBody,
    ModelBody,
    PublishBody,
    RollbackBody,
    UpdateBody,
    WeightsBody,
)
from sax.errors import InvalidRequest
from sax.fields.field import RequestRoute
from sax.names import CellId, ModelId
from sax.types import PublishedModel
from sax.wire.extra_inputs import ExtraInputs

M = TypeVar("M", bound=BaseModel)
_SCALING = {"min_replicas", "max_replicas", "target_queue"}


class SaxmlRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._client = backend.client

    def router(self) -> APIRouter:
        router = APIRouter(tags=["saxml"])
        add = router.add_api_route
        add("/publish", self.publish, methods=["POST"], **described.PUBLISH)
        add("/update", self.update, methods=["PUT"], **described.UPDATE)
        add("/canary", self.canary, methods=["POST"], **described.CANARY)
        add("/promote", self.promote, methods=["POST"], **described.PROMOTE)
        add("/abort", self.abort, methods=["POST"], **described.ABORT)
        add("/rollback", self.rollback, methods=["POST"], **described.ROLLBACK)
        add("/weights", self.weights, methods=["POST"], **described.WEIGHTS)
        add("/versions", self.versions, methods=["GET"], **described.VERSIONS)
        add("/events", self.events, methods=["GET"], **described.EVENTS)
        add("/unpublish", self.unpublish, methods=["POST"], **described.UNPUBLISH)
        add("/generate", self.generate, methods=["POST"], **described.GENERATE)
        # A GET may name the model or cell in its body too, which OpenAPI cannot say.
        add("/listcell", self.listcell, methods=["GET"], **described.LISTCELL_QUERY)
        add("/listcell", self.listcell, methods=["POST"], **described.LISTCELL)
        add("/listall", self.listall, methods=["GET"], **described.LISTALL_QUERY)
        add("/listall", self.listall, methods=["POST"], **described.LISTALL)
        return router

    async def publish(self, request: Request) -> Response:
        """Publish a model: durable on return, loading continues in the background."""
        body = PublishBody.model_validate_json(await read_body(request, RequestRoute.PUBLISH))
        check_allowed(body.model)
        await self._client.publish(
            body.model,
            body.model_path,
            body.checkpoint,
            body.replicas,
            body.overrides,
            autoscaling=body.autoscaling,
        )
        return pretty(_published(body))

    async def update(self, request: Request) -> Response:
        """Change a published model."""
        body = UpdateBody.model_validate_json(await read_body(request, RequestRoute.UPDATE))
        check_allowed(body.model)
        await self._client.update(
            body.model,
            model_path=body.model_path,
            checkpoint=body.checkpoint,
            replicas=body.replicas,
            overrides=body.overrides,
            revision=body.revision,
            autoscaling=body.autoscaling,
        )
        return pretty(_published(body))

    async def canary(self, request: Request) -> Response:
        """Give a new checkpoint or overrides a part of the requests (not in Saxml)."""
        body = CanaryBody.model_validate_json(await read_body(request, RequestRoute.CANARY))
        check_allowed(body.model)
        await self._client.update(
            body.model,
            checkpoint=body.checkpoint,
            overrides=body.overrides,
            revision=body.revision,
            canary=body.percent,
        )
        return pretty({"model": body.model, "percent": body.percent})

    async def promote(self, request: Request) -> Response:
        """Roll the canary of a model out to all replicas (not in Saxml)."""
        body = ModelBody.model_validate_json(await read_body(request, RequestRoute.PROMOTE))
        check_allowed(body.model)
        version = await self._client.promote(body.model)
        return pretty({"model": body.model, "version": version})

    async def abort(self, request: Request) -> Response:
        """Go back from the canary of a model (not in Saxml)."""
        body = ModelBody.model_validate_json(await read_body(request, RequestRoute.ABORT))
        check_allowed(body.model)
        version = await self._client.abort(body.model)
        return pretty({"model": body.model, "version": version})

    async def rollback(self, request: Request) -> Response:
        """Roll back to an earlier version (not in Saxml)."""
        body = RollbackBody.model_validate_json(await read_body(request, RequestRoute.ROLLBACK))
        check_allowed(body.model)
        version = await self._client.rollback(body.model, body.version)
        return pretty({"model": body.model, "version": version})

    async def weights(self, request: Request) -> Response:
        """Change a loaded model's weights in place, pause it, or tell its versions (not in
        Saxml)."""
        body = WeightsBody.model_validate_json(await read_body(request, RequestRoute.WEIGHTS))
        check_allowed(body.model)
        replicas = await self._client.change_weights(body.change)
        return pretty({"model": body.model, "replicas": [asdict(each) for each in replicas]})

    async def versions(self, request: Request) -> Response:
        """List the versions that a model can roll back to, newest first (not in Saxml)."""
        query = ModelBody.model_validate(dict(request.query_params))
        check_allowed(query.model)
        return pretty(msgspec.to_builtins(await self._client.versions(query.model)))

    async def events(self, request: Request) -> Response:
        """List changes with author and time, newest first (not in Saxml)."""
        query = EventsQuery.model_validate(dict(request.query_params))
        events = await self._client.events(query.model, before=query.before, limit=query.limit)
        return pretty(msgspec.to_builtins(visible_events(events)))

    async def unpublish(self, request: Request) -> Response:
        body = ModelBody.model_validate_json(await read_body(request, RequestRoute.UNPUBLISH))
        check_allowed(body.model)
        await self._client.unpublish(body.model)
        return pretty({"model": body.model})

    async def listcell(self, request: Request) -> Response:
        """Describe one model, named in the body (of a GET too) or the query string."""
        body = await _body_or_query(request, ModelBody, RequestRoute.LISTCELL)
        check_allowed(body.model)
        model = await self._client.list(body.model)
        return pretty(
            {
                **listed(model),
                **_shortage(model),
                **_note(model),
                **_warnings(model),
                **_canary(model),
            }
        )

    async def listall(self, request: Request) -> Response:
        """List the full names of a cell's models that the caller's key may use."""
        body = await _body_or_query(request, CellBody, RequestRoute.LISTALL)
        models = await self._client.list_all(str(CellId.parse(body.sax_cell)))
        return pretty([model.spec.model_id for model in visible(models)])

    async def generate(self, request: Request) -> Response:
        """Generate; returns every sample with its score."""
        body = GenerateBody.model_validate_json(await read_body(request, RequestRoute.GENERATE))
        extra = body.effective_extra_inputs()
        return pretty(await samples(self._backend, request, body.model, body.query, extra))


async def samples(
    backend: Backend, request: Request, model: str, query: str, extra_inputs: ExtraInputs | None
) -> list[list[str | float]]:
    """Generate: return [[text, score], ...]; cancelled when the client disconnects."""
    model_id = await backend.catalog.require(str(ModelId.parse(model)))
    limit_s = backend.limit_s(request)
    work = backend.client.saxml_generate_counted(model_id, query, extra_inputs, limit_s)
    found = await backend.run(request, work)
    backend.count(found.prompt_tokens, found.completion_tokens)
    return [[text, score] for text, score in found.texts]


def listed(model: PublishedModel) -> dict[str, object]:
    """Reply of /listcell. active_replicas counts the ready ones; max_replicas is autoscaling's
    upper bound, else the published count."""
    spec = model.spec
    return {
        "model": spec.model_id,
        "model_path": spec.model_path,
        "checkpoint": spec.checkpoint,
        "max_replicas": spec.autoscaling.max_replicas if spec.autoscaling else spec.replicas,
        "active_replicas": model.ready_replicas,
    }


def _shortage(model: PublishedModel) -> dict[str, object]:
    """Return `reason`, a field not in Saxml, while replicas are missing."""
    if model.ready_replicas >= model.wanted_replicas:
        return {}
    reasons = dict.fromkeys(replica.reason for replica in model.replicas if replica.reason)
    return {"reason": "; ".join(reasons)} if reasons else {}


def _note(model: PublishedModel) -> dict[str, object]:
    """Return `note`, a field not in Saxml, if it is not served as its model path says."""
    return {"note": "; ".join(model.notes)} if model.notes else {}


def _warnings(model: PublishedModel) -> dict[str, object]:
    """Return `warnings`, a field not in Saxml, of overrides without effect."""
    return {"warnings": list(model.warnings)} if model.warnings else {}


def _canary(model: PublishedModel) -> dict[str, object]:
    """Return `canary`, a field not in Saxml, while there is one."""
    if (canary := model.spec.canary) is None:
        return {}
    return {"canary": {**msgspec.to_builtins(canary), "ready_replicas": model.ready_canaries}}


def pretty(content: object) -> Response:
    text = json.dumps(content, indent=4, ensure_ascii=False)
    return Response(text, media_type="application/json")


def _published(body: PublishBody) -> dict[str, object]:
    """Echo the fields that were sent: Saxml's own replies have no others."""
    values = body.model_dump()
    silent = {name for name in ("overrides", "revision") if values.get(name) is None}
    return body.model_dump(exclude=silent | (_SCALING - body.model_fields_set))


async def _body_or_query(request: Request, model: type[M], route: RequestRoute) -> M:
    raw = await read_body(request, route)
    if raw and request.query_params:
        raise InvalidRequest("give the field in the body or in the query string, not both")
    if raw:
        return model.model_validate_json(raw)
    return model.model_validate(dict(request.query_params))
