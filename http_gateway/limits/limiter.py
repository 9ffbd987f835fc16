"""Limiter: the allowances of this process's keys, by name.

Gateways share no state, so each process gives a key its limits anew.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from http_gateway.limits.allowance import Allowance, OverLimit
from http_gateway.limits.token_bucket import TokenBucket
from sax.auth.acl import Principal

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
