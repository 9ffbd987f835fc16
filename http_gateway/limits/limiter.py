"""Limiter: the allowances of this process's keys, by name.

Gateways share no state, so each process gives a key its limits anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from http_gateway.limits.allowance import Allowance, OverLimit
from http_gateway.limits.headers import Headers, limit_headers
from sax.auth.acl import Principal


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

    def headers(self, key: Principal) -> Headers:
        return limit_headers(self._now(key))

    def _now(self, key: Principal) -> Allowance:
        now_s = self._clock()
        known = self._allowances.get(key.name)
        return known.at(key.limits, now_s) if known else Allowance.fresh(key.limits, now_s)
