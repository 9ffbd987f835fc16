"""Reads a request's body within the bounds of its route.

A parser takes a microsecond or two for each value, so eight megabytes of "[]," would stop every
stream for seconds; the same size as one text costs a few milliseconds. Values are therefore counted
before the body is parsed.
"""

from __future__ import annotations

import asyncio

from fastapi import Request
from starlette.exceptions import HTTPException

from sax import memory_return
from sax.errors import InvalidRequest
from sax.fields.field import RequestRoute
from sax.fields.table import most_bytes, most_parts, most_values

_LARGE = 2 << 20  # bytes of a body that holds images
_BEGINNING = 1 << 19  # bytes that show a hostile body for what it is in some 2 ms


async def read_body(request: Request, route: RequestRoute) -> bytes:
    """Return the body.

    Raises HTTPException (413) if it is larger than any good one of the route, from the headers if
    they say so, and InvalidRequest if it holds more JSON values than any good one.
    """
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit():
        check_size(int(announced), route)
    body = await request.body()
    memory_return.after(len(body))
    check_size(len(body), route)
    if len(body) <= _LARGE:
        check_values(body, route)
    else:  # in steps of some milliseconds each, between which streams go on
        await asyncio.to_thread(check_values, body, route)
    return body


def check_size(size: int, route: RequestRoute) -> None:
    """Raise HTTPException if a body has more bytes than any good one of the route."""
    if size > most_bytes(route):
        raise HTTPException(
            413,
            f"the body has {size} bytes; at most {most_bytes(route)} make sense for {route}: "
            "send less",
        )


def check_values(body: bytes, route: RequestRoute) -> None:
    """Raise InvalidRequest if a body holds more values, or more lists, objects and names of fields,
    than any good one of the route."""
    if len(body) > _BEGINNING:
        _check_part(body[:_BEGINNING], route)
    _check_part(body, route)


def _check_part(body: bytes, route: RequestRoute) -> None:
    values, parts = most_values(route), most_parts(route)
    if values_of(body) <= values and parts_of(body) <= parts:
        return  # even with those inside texts
    bare = without_texts(body, values)
    if bare is None or values_of(bare) > values:
        raise _too_many(values, "values", route)
    if parts_of(bare) > parts:
        raise _too_many(parts, "lists, objects and fields", route)


def without_texts(body: bytes, most: int) -> bytes | None:
    """Return what stands outside texts; None for more texts than so many values can have."""
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"")
    if unescaped.count(b'"') > 4 * most:  # two for a text, which is a value or the name of one
        return None
    return b"".join(unescaped.split(b'"')[::2])


def values_of(bare: bytes) -> int:
    """Return at least the number of JSON values: all but the outermost follow one of these."""
    return 1 + bare.count(b",") + bare.count(b"[") + bare.count(b"{")


def parts_of(bare: bytes) -> int:
    """Return the number of lists, objects and names of fields."""
    return bare.count(b"[") + bare.count(b"{") + bare.count(b":")


def _too_many(most: int, of: str, route: RequestRoute) -> InvalidRequest:
    return InvalidRequest(
        f"the body holds more than {most} {of}, the most for {route}: send less", param="body"
    )
