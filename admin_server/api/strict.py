"""Strict requests: refuse large ones, and unknown fields by name.

A field unknown to this admin server would otherwise be dropped silently, and a newer client would
believe it was honoured.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from sax.errors import InvalidRequest

# Above every valid request (a spec has at most 256 KiB, a join some hundred model paths), below
# gRPC's own limit, so that an oversized request gets our error text.
REQUEST_BYTES = 4 * 1024 * 1024
RECEIVE_BYTES = 16 * 1024 * 1024

_PACKAGE = "/sax."
# A newer model server must be able to join an older admin server, which ignores whatever else it
# reports about itself.
_MAY_SAY_MORE = frozenset({"/sax.Admin/Join"})


class StrictInterceptor(grpc.aio.ServerInterceptor):
    """Refuses unary requests to our services with InvalidRequest, within `ErrorInterceptor`."""

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        handler = await continuation(handler_call_details)
        path: str = handler_call_details.method
        if handler is None or not handler.unary_unary or not path.startswith(_PACKAGE):
            return handler
        return grpc.unary_unary_rpc_method_handler(
            handler.unary_unary if path in _MAY_SAY_MORE else _checking(handler.unary_unary),
            request_deserializer=_reading(handler.request_deserializer, path),
            response_serializer=handler.response_serializer,
        )


def _reading(parse: Callable[[bytes], Message], path: str) -> Callable[[bytes], Message]:
    def read(data: bytes) -> Message:
        if len(data) > REQUEST_BYTES:
            text = f"a request of {len(data)} bytes to {path}: send at most {REQUEST_BYTES}"
            raise InvalidRequest(text, param="request")
        return parse(data)

    return read


def _checking(method: Callable[[Any, Any], Awaitable[Any]]) -> Any:
    async def checked(request: Message, context: Any) -> Any:
        check_known(request)
        return await method(request, context)

    return checked


def check_known(message: Message) -> None:
    for path in unknown_fields(message):
        raise InvalidRequest(
            f"{message.DESCRIPTOR.name} has no field {path}; it may come from a newer client than "
            "this admin server: update the admin server first, or omit the field",
            param=path,
        )


def unknown_fields(message: Message, path: str = "") -> Iterator[str]:
    """Paths of unknown fields, as in model.placement.99."""
    for unknown in UnknownFieldSet(message):  # pyright: ignore[reportUnknownVariableType]
        yield f"{path}{unknown.field_number}"
    for field, value in message.ListFields():
        for inner in _messages(field.message_type, value):
            yield from unknown_fields(inner, f"{path}{field.name}.")


def _messages(kind: Descriptor | None, value: Any) -> Iterator[Message]:
    """The messages in a field: none, one, several, or the values of a map."""
    if kind is None:
        return
    if kind.GetOptions().map_entry:
        if kind.fields_by_name["value"].message_type is not None:
            yield from value.values()
    elif isinstance(value, Message):
        yield value
    else:
        yield from value
