"""Applies the limits of keys to HTTP requests. Pure ASGI, within `Auth`.

Every request of a limited key counts except those that only read: no such route reaches a model. So
a new route is limited without a line of its own.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from http_gateway.access.record import RequestRecord
from http_gateway.limits.allowance import OverLimit
from http_gateway.limits.limiter import Limiter
from http_gateway.metrics import GatewayMetrics
from http_gateway.problems import answer
from sax.auth.acl import Principal, caller
from sax.errors import LimitExceeded

_READING = ("GET", "HEAD", "OPTIONS")


class Limits:
    def __init__(
        self, app: ASGIApp, *, limiter: Limiter, metrics: GatewayMetrics, generation: int
    ) -> None:
        self._app = app
        self._limiter = limiter
        self._metrics = metrics
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = caller()
        if scope["type"] != "http" or not key.limits.counted:
            return await self._app(scope, receive, send)
        telling = self._telling(key, send)
        if scope["method"] in _READING:
            return await self._app(scope, receive, telling)
        if refusal := self._limiter.admit(key):
            self._metrics.limited.labels(refusal.limit).inc()
            reply = answer(scope["path"], explained(key.name, refusal), self._generation)
            return await reply(scope, receive, telling)
        try:
            await self._app(scope, receive, telling)
        finally:
            self._limiter.leave(key, RequestRecord.current().tokens)

    def _telling(self, key: Principal, send: Send) -> Send:
        """Return a `send` that adds the limits to the head of the reply."""

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), *self._limiter.headers(key)]
                message = {**message, "headers": headers}
            await send(message)

        return tell


def explained(name: str, refusal: OverLimit) -> LimitExceeded:
    return LimitExceeded(
        f"the key {name} is limited to {refusal.most} {refusal.words} at each gateway "
        f"({refusal.limit}={refusal.most}): send it again after the seconds in Retry-After, or ask "
        "the operators of this cell for more",
        retry_after_s=refusal.retry_after_s,
    )
