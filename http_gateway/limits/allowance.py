"""Allowance: what one key may still use, as a value. The clock is passed in; nothing is waited for.

A request is admitted if fewer than `concurrent` are running, one more request fits into its rate
and the balance of tokens is positive. Its tokens are charged when it has ended, so that the balance
may go below zero; then nothing is admitted until time has paid that back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from http_gateway.limits.token_bucket import TokenBucket
from sax.auth.key_limits import KeyLimits

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
