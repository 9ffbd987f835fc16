"""LineRunner: answers one line of a batch as its route would, on behalf of the batch's key.
LineSlots: how many run at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
from fastapi import Request
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Message, Scope

from http_gateway.access import RequestRecord, new_request_id
from http_gateway.catalog import Catalog
from http_gateway.limits import Limiter, explained
from http_gateway.openai.batches.input_lines import BatchLine
from http_gateway.openai.batches.records import BatchOrder, LineResult
from http_gateway.problems import answer
from sax.auth.acl import ANYONE, Principal, enter_call, parse_acls
from sax.auth.authentication import Authentication
from sax.auth.credentials import Credentials, acting_as
from sax.errors import Internal, PermissionDenied, SaxError, Unauthenticated
from sax.fields.field import RequestRoute
from sax.fields.sampling import MOST_PRIORITY

log = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]

_TRIES = 3  # of what may be the request's own fault
_BUSY = (429, 503)  # tried again until the batch's time is over
_LONGEST_WAIT_S = 60.0


@dataclass(slots=True)
class LineTurn:
    """One line of a batch among the requests of its key."""

    key: Principal | None  # whose limits it counts against; None: it has none
    tries: list[RequestRecord] = field(default_factory=list[RequestRecord])


@dataclass(frozen=True, slots=True)
class LineRunner:
    handlers: Mapping[str, Handler]  # by endpoint
    catalog: Catalog
    authentication: Authentication
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    limiter: Limiter = field(default_factory=Limiter)

    def begin(self, order: BatchOrder) -> LineTurn:
        """Count a line as a request of the batch's key, until `end`.

        Raises LimitExceeded while the key is over one of its limits.
        """
        key = self.authentication.named(order.key) if order.key else None
        if key is None or not key.limits.counted:
            return LineTurn(None)
        if refusal := self.limiter.admit(key):
            raise explained(key.name, refusal)
        return LineTurn(key)

    def end(self, turn: LineTurn) -> None:
        """Charge the key with what the line took, over all tries."""
        if turn.key is not None:
            self.limiter.leave(turn.key, sum(record.tokens for record in turn.tries))

    async def run(self, order: BatchOrder, line: BatchLine, turn: LineTurn) -> LineResult:
        """Answer a line; while every replica is busy or none is ready, try again."""
        while True:
            record = RequestRecord(new_request_id(), "POST")
            turn.tries.append(record)
            reply = await asyncio.create_task(self._answered(order, line, record))
            wait_s = self._wait_s(reply, len(turn.tries))
            if wait_s is None:
                return _result(order, line, record.request_id, reply)
            await self.sleep(wait_s)

    def _wait_s(self, reply: Response, tries: int) -> float | None:
        """Return how long to wait before another try; None: this is the answer."""
        if reply.status_code in _BUSY:
            told = float(reply.headers.get("retry-after", "1"))
            return min(max(told, 2.0 ** min(tries - 1, 6)), _LONGEST_WAIT_S)
        if reply.status_code >= 500 and tries < _TRIES:
            return 2.0**tries
        return None

    async def _answered(
        self, order: BatchOrder, line: BatchLine, record: RequestRecord
    ) -> Response:
        """Answer a line in a task of its own, whose record and caller are the line's."""
        record.enter()
        path = order.endpoint
        try:
            key = self._key(order)
            enter_call(key)
            # Without the key's token, which is kept nowhere: our own opens the door, and what the
            # key may do is checked here. The account keeps batches from the share of others.
            with acting_as(Credentials.ours().current_token(), f"batches of {order.owner}"):
                await self._check_model(key, line, path)
                return await self.handlers[path](_request(path, line))
        except (SaxError, ValidationError, HTTPException) as error:
            return answer(path, error, 2)
        except Exception:
            log.exception("line %d of %s failed", line.number, order.id)
            return answer(path, Internal(RequestRecord.current().internal_error), 2)

    def _key(self, order: BatchOrder) -> Principal:
        if not order.key:
            if self.authentication.on:
                raise Unauthenticated("this batch was created before keys were needed here")
            return ANYONE
        found = self.authentication.named(order.key)
        if found is None:
            raise Unauthenticated(f"the key {order.key} of this batch is no longer valid")
        return found

    async def _check_model(self, key: Principal, line: BatchLine, path: str) -> None:
        """Raise PermissionDenied if the model's access control list leaves the key out."""
        name = line.body.get("model")
        if not isinstance(name, str):
            return  # refused by the route
        model_id = await self.catalog.resolve(name)
        method = "lm.embed" if path == RequestRoute.EMBEDDINGS else "lm.generate"
        specs = (model.spec for model in self.catalog.models if model.spec.model_id == model_id)
        for spec in specs:
            acl = parse_acls(spec.acls).of(method)
            if acl is not None and not acl.allows(key):
                raise PermissionDenied(
                    f"{method} of {model_id} is not open to this batch's key", param="model"
                )


def _request(path: str, line: BatchLine) -> Request:
    body = dict(line.body)
    if path != RequestRoute.EMBEDDINGS:
        body["priority"] = MOST_PRIORITY  # behind all requests that someone waits for
    data = msgspec.json.encode(body)
    messages: list[Message] = [{"type": "http.request", "body": data, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        return await asyncio.get_running_loop().create_future()  # nobody goes away

    scope: Scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(b"content-length", str(len(data)).encode())],
        "route": SimpleNamespace(path=path),  # names the request in metrics
        "path_params": {},
    }
    return Request(scope, receive)


def _result(order: BatchOrder, line: BatchLine, request_id: str, reply: Response) -> LineResult:
    response: dict[str, Any] = {
        "status_code": reply.status_code,
        "request_id": request_id,
        "body": msgspec.Raw(bytes(reply.body)),
    }
    good = reply.status_code == 200
    return LineResult(line.number, good, line_text(order, line, response=response))


def line_text(
    order: BatchOrder,
    line: BatchLine,
    *,
    response: dict[str, Any] | None = None,
    error: dict[str, str] | None = None,
) -> str:
    """Return a line of an output or error file."""
    whole = {
        "id": f"{order.id.replace('batch_', 'batch_req_')}_{line.number}",
        "custom_id": line.custom_id,
        "response": response,
        "error": error,
    }
    return msgspec.json.encode(whole).decode()


_LOOK_S = 0.2  # until it is seen that nobody waits any more


class LineSlots:
    """Lines of batches at once, of which one goes on while somebody waits for an answer.

    Model servers share their slots among accounts, and a priority counts within one only. So it is
    the gateway that keeps batches behind the requests that people wait for.
    """

    def __init__(self, most: int, busy: Callable[[], bool]) -> None:
        """busy: True while this gateway serves requests."""
        self._most = most
        self._busy = busy
        self._running = 0
        self._freed = asyncio.Event()

    async def acquire(self) -> None:
        """Wait until one more line may run."""
        while self._running >= (1 if self._busy() else self._most):
            self._freed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._freed.wait()
        self._running += 1

    def release(self) -> None:
        self._running -= 1
        self._freed.set()
