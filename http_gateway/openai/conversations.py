"""OpenAI's /v1/conversations: items that are kept, and that answers add to."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Annotated, Any, Literal, TypedDict

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from http_gateway.body import read_body
from http_gateway.bounds import bounded
from http_gateway.openai.responses.answer import ResponseItem, ResponseItemList
from http_gateway.openai.responses.bodies import items_schema
from http_gateway.openai.responses.conversation import to_conversation
from http_gateway.openai.responses.items import to_new_items
from http_gateway.openai.responses.kept_conversations import KeptConversations
from http_gateway.openai.responses.schema import check_included
from http_gateway.openai.stored import PageQuery, list_body, page_of
from http_gateway.openai.unsupported import refuse_unsupported
from http_gateway.openapi import (
    ALWAYS,
    JSON,
    WITH_BODY,
    OpenAiError,
    RequestBody,
    Schema,
    operation,
    query_of,
)
from sax.errors import NotFound
from sax.fields.field import RequestRoute

_ROUTE = RequestRoute.CONVERSATIONS
MOST_ITEMS = 20  # of one request: OpenAI's own limit


class ConversationBody(TypedDict):
    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class ConversationDeleted(TypedDict):
    id: str
    object: Literal["conversation.deleted"]
    deleted: bool


_Items = Annotated[list[dict[str, object]], bounded(_ROUTE, "items"), Field(max_length=MOST_ITEMS)]


class NewConversation(BaseModel):
    """POST /v1/conversations."""

    model_config = ConfigDict(defer_build=True, extra="allow", strict=True, frozen=True)

    items: _Items | None = None
    metadata: Annotated[dict[str, str], bounded(_ROUTE, "metadata")] | None = None


class ConversationLabels(BaseModel):
    """POST /v1/conversations/{conversation_id}."""

    model_config = ConfigDict(defer_build=True, extra="allow", strict=True, frozen=True)

    metadata: Annotated[dict[str, str], bounded(_ROUTE, "metadata")]


class NewItems(BaseModel):
    """POST /v1/conversations/{conversation_id}/items."""

    model_config = ConfigDict(defer_build=True, extra="allow", strict=True, frozen=True)

    items: _Items


class ItemQuery(PageQuery):
    """GET /v1/conversations/{conversation_id}/items."""

    include: list[str] | None = None


def _described(model: type[BaseModel], *, items: bool = True) -> RequestBody:
    if not items:
        return RequestBody(model=model, route=_ROUTE)
    many = items_schema(most=MOST_ITEMS, least=0)
    if not model.model_fields["items"].is_required():
        many = {"anyOf": [many, {"type": "null"}]}
    return RequestBody(model=model, route=_ROUTE, replaced={"items": many})


def _path(name: str, what: str) -> Schema:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": f"The id of {what}.",
        "schema": {"type": "string", "minLength": 1},
    }


_ID, _ITEM = _path("conversation_id", "a conversation"), _path("item_id", "an item")
_told = partial(operation, errors=OpenAiError)
_KEPT, _WRITTEN = (*ALWAYS, 400, 404), (*WITH_BODY, 404)
_CREATE = _told(ConversationBody, statuses=WITH_BODY, body=_described(NewConversation))
_GET = _told(ConversationBody, statuses=_KEPT, parameters=[_ID])
_UPDATE = _told(
    ConversationBody,
    statuses=_WRITTEN,
    parameters=[_ID],
    body=_described(ConversationLabels, items=False),
)
_DELETE = _told(ConversationDeleted, statuses=_KEPT, parameters=[_ID])
_LIST = _told(ResponseItemList, statuses=_KEPT, parameters=chain([_ID], query_of(ItemQuery)))
_ADD = _told(ResponseItemList, statuses=_WRITTEN, parameters=[_ID], body=_described(NewItems))
_GET_ITEM = _told(ResponseItem, statuses=_KEPT, parameters=[_ID, _ITEM])
_DELETE_ITEM = _told(ConversationBody, statuses=_KEPT, parameters=[_ID, _ITEM])


class ConversationRoutes:
    def __init__(self, kept: KeptConversations) -> None:
        self._kept = kept

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/conversations", tags=["openai"])
        add = router.add_api_route
        add("", self.create, methods=["POST"], **_CREATE)
        add("/{conversation_id}", self.get, methods=["GET"], **_GET)
        add("/{conversation_id}", self.update, methods=["POST"], **_UPDATE)
        add("/{conversation_id}", self.delete, methods=["DELETE"], **_DELETE)
        add("/{conversation_id}/items", self.items, methods=["GET"], **_LIST)
        add("/{conversation_id}/items", self.add_items, methods=["POST"], **_ADD)
        add("/{conversation_id}/items/{item_id}", self.item, methods=["GET"], **_GET_ITEM)
        add(
            "/{conversation_id}/items/{item_id}",
            self.delete_item,
            methods=["DELETE"],
            **_DELETE_ITEM,
        )
        return router

    async def create(self, request: Request) -> Response:
        """Begin a conversation, with items or without."""
        body = NewConversation.model_validate_json(await read_body(request, _ROUTE))
        refuse_unsupported(body.model_extra, {})
        _check(body.items or [])
        made = await self._kept.create(body.metadata or {}, to_new_items(body.items or []))
        return _json(made.body())

    async def get(self, request: Request) -> Response:
        """Describe a conversation."""
        return _json((await self._kept.head(_id(request))).body())

    async def update(self, request: Request) -> Response:
        """Replace the metadata of a conversation."""
        body = ConversationLabels.model_validate_json(await read_body(request, _ROUTE))
        refuse_unsupported(body.model_extra, {})
        return _json((await self._kept.relabel(_id(request), body.metadata)).body())

    async def delete(self, request: Request) -> Response:
        """Delete a conversation and its items."""
        await self._kept.delete(_id(request))
        return _json({"id": _id(request), "object": "conversation.deleted", "deleted": True})

    async def items(self, request: Request) -> Response:
        """List the items of a conversation, the newest first."""
        told = dict(request.query_params)
        included = [*told.pop("include", "").split(",")] if "include" in told else []
        included += request.query_params.getlist("include[]")
        told.pop("include[]", None)
        check_included([name for name in included if name])
        query = ItemQuery.model_validate(told)
        return _json(page_of(await self._kept.items(_id(request)), query))

    async def add_items(self, request: Request) -> Response:
        """Add items to a conversation."""
        body = NewItems.model_validate_json(await read_body(request, _ROUTE))
        refuse_unsupported(body.model_extra, {})
        self._kept.check("items")
        _check(body.items, await self._kept.items(_id(request)))
        made = to_new_items(body.items)
        await self._kept.add(_id(request), made)
        return _json(list_body(made, more=False))

    async def item(self, request: Request) -> Response:
        """Return one item of a conversation."""
        id = request.path_params["item_id"]
        for item in await self._kept.items(_id(request)):
            if item["id"] == id:
                return _json(item)
        raise NotFound(f"there is no item {id[:80]!r} in this conversation")

    async def delete_item(self, request: Request) -> Response:
        """Delete one item of a conversation."""
        await self._kept.remove(_id(request), request.path_params["item_id"])
        return await self.get(request)


def _id(request: Request) -> str:
    return request.path_params["conversation_id"]


def _check(items: list[dict[str, object]], earlier: list[dict[str, Any]] | None = None) -> None:
    """Raise InvalidRequest or UnsupportedParameter naming the part of an item that is wrong."""
    to_conversation("", items, earlier or (), names=("items", "conversation"))


def _json(body: Any) -> Response:
    return Response(msgspec.json.encode(body), media_type=JSON)
