"""Long input in every text of every method of a gRPC service, and what comes back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import grpc.aio
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from sax.wire.rpc import to_sax_error

LONGEST = 200
# Short words, so that nothing shortens them as one.
GARBAGE = " ".join(f"{i:x}w/{i}" for i in range(200))


async def echoes(
    channel: grpc.aio.Channel, files: list[FileDescriptor], valid: Mapping[str, Any]
) -> list[str]:
    """Call every method that takes one message with garbage in one text after another.

    Other fields have what `valid` says for their names. Returns the errors that repeat more than
    200 characters of it, and fails if no error came at all.
    """
    found: list[str] = []
    refused = 0
    for path, kind in methods(files):
        for request in garbled(GetMessageClass(kind), valid):
            call = channel.unary_stream(path)(request.SerializeToString(), timeout=1)
            try:
                await call.read()
            except grpc.aio.AioRpcError as error:
                refused += 1
                told = to_sax_error(error, "the peer")
                if repeats(f"{told.text}\n{told.param}") or repeats(error.details() or ""):
                    found.append(f"{path} {told.text[:500]}")
            finally:
                call.cancel()
    assert refused, "every request was taken"
    return found


def methods(files: list[FileDescriptor]) -> Iterator[tuple[str, Descriptor]]:
    for file in files:
        for service in file.services_by_name.values():
            for method in service.methods:
                if not method.client_streaming:
                    yield f"/{service.full_name}/{method.name}", method.input_type


def garbled(kind: type[Message], valid: Mapping[str, Any]) -> Iterator[Message]:
    """The message once for each text in it, with garbage there."""
    for path in texts(cast("Descriptor", kind.DESCRIPTOR)):
        message = kind()
        fill(message, valid)
        put(message, path)
        yield message


def texts(kind: Descriptor, depth: int = 4) -> Iterator[tuple[FieldDescriptor, ...]]:
    """The path of every text field, within messages too."""
    for field in kind.fields:
        if field.type == field.TYPE_STRING:
            yield (field,)
        elif field.message_type is not None and depth:
            inner = cast("Descriptor", field.message_type)
            yield from ((field, *rest) for rest in texts(inner, depth - 1))


def fill(message: Message, valid: Mapping[str, Any]) -> None:
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None:
            if not field.is_repeated and field.name in ("model", "model_server"):
                fill(getattr(message, field.name), valid)
        elif field.name in valid:
            setattr(message, field.name, valid[field.name])


def put(message: Any, path: tuple[FieldDescriptor, ...]) -> None:
    field, *rest = path
    if not rest and not field.is_repeated:
        setattr(message, field.name, GARBAGE)
    elif not rest:
        getattr(message, field.name).append(GARBAGE)
    elif (kind := field.message_type) is not None and kind.GetOptions().map_entry:
        put_in_map(getattr(message, field.name), kind, rest)
    elif field.is_repeated:
        put(getattr(message, field.name).add(), tuple(rest))
    else:
        put(getattr(message, field.name), tuple(rest))


def put_in_map(items: Any, entry: Descriptor, rest: list[FieldDescriptor]) -> None:
    value = entry.fields_by_name["value"]
    key = GARBAGE if rest[0].name == "key" else "some"
    if value.message_type is not None:
        items[key].SetInParent()
    else:
        items[key] = GARBAGE if value.type == value.TYPE_STRING else value.default_value


def repeats(text: str) -> bool:
    runs = (GARBAGE[i : i + LONGEST + 1] for i in range(len(GARBAGE) - LONGEST))
    return any(run in text for run in runs)
