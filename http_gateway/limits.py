"""Limits of keys: the rates that each has here, and the models that it may use.

A request is admitted if fewer than `concurrent` are running, one more request fits into its rate
and the balance of tokens is positive. Its tokens are charged when it has ended, so that the balance
may go below zero; then nothing is admitted until time has paid that back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from http_gateway.access import RequestRecord
from http_gateway.metrics import GatewayMetrics
from http_gateway.problems import answer
from sax.auth.acl import Principal, caller
from sax.auth.key_limits import KeyLimits
from sax.errors import LimitExceeded, PermissionDenied
from sax.types import Event, PublishedModel

_MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """A value that gains so many units a minute and holds at most that many.

    So within any time T it gives at most T / 60 times its rate and one bucketful. The level may
    become negative: what a request costs in tokens is known only when it has ended.
    """

    per_minute: int
    level: float
    at_s: float  # when it had this level

    @classmethod
    def full(cls, per_minute: int, now_s: float) -> TokenBucket:
        return cls(per_minute, float(per_minute), now_s)

    def at(self, now_s: float) -> TokenBucket:
        """Return the bucket as it is now. A clock that goes back adds nothing."""
        if now_s <= self.at_s:
            return self
        gained = (now_s - self.at_s) * self.per_minute / _MINUTE_S
        return TokenBucket(self.per_minute, min(self.per_minute, self.level + gained), now_s)

    def less(self, units: float) -> TokenBucket:
        return replace(self, level=self.level - units)

    def resized(self, per_minute: int) -> TokenBucket:
        """Return a bucket of another rate: what was used of this one stays used."""
        if per_minute == self.per_minute:
            return self
        used = self.per_minute - self.level
        return TokenBucket(per_minute, per_minute - used, self.at_s)

    def wait_s(self, level: float) -> float:
        """Return the seconds until it has this level, 0 if it has."""
        return max(0.0, level - self.level) * _MINUTE_S / self.per_minute

    @property
    def full_in_s(self) -> float:
        return self.wait_s(self.per_minute)

    @property
    def remaining(self) -> int:
        """Return whole units that are left."""
        return max(0, int(self.level))


_RETRY_S = 1.0  # for a place among running requests: nobody knows when one is free


@dataclass(frozen=True, slots=True)
class OverLimit:
    """The limit that a request is over."""

    limit: str  # as in the token file
    most: int
    words: str
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class Allowance:
    """The rest that one key may use, as a value. The clock is passed in; nothing is waited for."""

    requests: TokenBucket | None  # None: no such limit
    tokens: TokenBucket | None
    concurrent: int | None
    running: int = 0

    @classmethod
    def fresh(cls, limits: KeyLimits, now_s: float) -> Allowance:
        return cls(_full(limits.rpm, now_s), _full(limits.tpm, now_s), limits.concurrent)

    def at(self, limits: KeyLimits, now_s: float) -> Allowance:
        """Return the allowance as it is now, under limits that may have changed."""
        return Allowance(
            _now(self.requests, limits.rpm, now_s),
            _now(self.tokens, limits.tpm, now_s),
            limits.concurrent,
            self.running,
        )

    def refusal(self) -> OverLimit | None:
        """Return why a request is not admitted; None if it is."""
        if self.concurrent is not None and self.running >= self.concurrent:
            return OverLimit("concurrent", self.concurrent, "requests at once", _RETRY_S)
        if self.tokens is not None and self.tokens.level <= 0:
            wait_s = self.tokens.wait_s(1)
            return OverLimit("tpm", self.tokens.per_minute, "tokens a minute", wait_s)
        if self.requests is not None and self.requests.level < 1:
            wait_s = self.requests.wait_s(1)
            return OverLimit("rpm", self.requests.per_minute, "requests a minute", wait_s)
        return None

    def begun(self) -> Allowance:
        """Return the allowance with one more request running."""
        requests = self.requests and self.requests.less(1)
        return replace(self, requests=requests, running=self.running + 1)

    def ended(self, tokens: int, now_s: float) -> Allowance:
        """Return the allowance with one request fewer, charged with its tokens."""
        return replace(self.charged(tokens, now_s), running=self.running - 1)

    def charged(self, tokens: int, now_s: float) -> Allowance:
        """Return the allowance with so many tokens less."""
        return replace(self, tokens=self.tokens and self.tokens.at(now_s).less(tokens))


def _full(per_minute: int | None, now_s: float) -> TokenBucket | None:
    return None if per_minute is None else TokenBucket.full(per_minute, now_s)


def _now(bucket: TokenBucket | None, per_minute: int | None, now_s: float) -> TokenBucket | None:
    if bucket is None or per_minute is None:
        return _full(per_minute, now_s)
    return bucket.at(now_s).resized(per_minute)


Headers = list[tuple[bytes, bytes]]


def limit_headers(allowance: Allowance) -> Headers:
    """Return the headers of the limits that it has."""
    return [
        *_of_bucket("requests", allowance.requests),
        *_of_bucket("tokens", allowance.tokens),
    ]


def _of_bucket(name: str, bucket: TokenBucket | None) -> Headers:
    if bucket is None:
        return []
    told = {
        "limit": str(bucket.per_minute),
        "remaining": str(bucket.remaining),
        "reset": duration(bucket.full_in_s),
    }
    return [(f"x-ratelimit-{key}-{name}".encode(), value.encode()) for key, value in told.items()]


def duration(seconds: float) -> str:
    """Format as OpenAI does: 20ms, 1.5s, 6m0s, 1h2m3s."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    if seconds < 60:
        return f"{math.ceil(seconds * 1000) / 1000:g}s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"


class Limiter:
    """The allowances of this process's keys, by name.

    Gateways share no state, so each process gives a key its limits anew.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._allowances: dict[str, Allowance] = {}

    def admit(self, key: Principal) -> OverLimit | None:
        """Count a request as begun, or return the limit that it is over."""
        allowance = self._now(key)
        refusal = allowance.refusal()
        self._allowances[key.name] = allowance if refusal else allowance.begun()
        return refusal

    def leave(self, key: Principal, tokens: int) -> None:
        """Count an admitted request as ended, with the tokens that it used."""
        self._allowances[key.name] = self._allowances[key.name].ended(tokens, self._clock())

    def charge(self, key: Principal, tokens: int) -> None:
        """Count tokens that a request used after it had ended."""
        self._allowances[key.name] = self._now(key).charged(tokens, self._clock())

    def headers(self, key: Principal) -> Headers:
        return limit_headers(self._now(key))

    def _now(self, key: Principal) -> Allowance:
        now_s = self._clock()
        known = self._allowances.get(key.name)
        return known.at(key.limits, now_s) if known else Allowance.fresh(key.limits, now_s)


_READING = ("GET", "HEAD", "OPTIONS")


class Limits:
    """Applies the limits of keys to HTTP requests. Pure ASGI, within `Auth`.

    Every request of a limited key counts except those that only read: no such route reaches a
    model. So a new route is limited without a line of its own.
    """

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


def check_allowed(model_id: str) -> None:
    """Raise PermissionDenied if the caller's key may not use this model."""
    key = caller()
    if not key.limits.allows(model_id):
        raise PermissionDenied(
            f"the key {key.name} may not use {model_id}: it is limited to "
            f"{', '.join(key.limits.models)}; ask the operators of this cell for more",
            param="model",
        )


def visible(models: Iterable[PublishedModel]) -> tuple[PublishedModel, ...]:
    """Return those models that the caller's key may use."""
    limits = caller().limits
    if not limits.models:
        return tuple(models)
    return tuple(model for model in models if limits.allows(model.spec.model_id))


def visible_events(events: Iterable[Event]) -> list[Event]:
    """Return those events that concern models which the caller's key may use, or no model."""
    limits = caller().limits
    return [each for each in events if not each.model_id or limits.allows(each.model_id)]
