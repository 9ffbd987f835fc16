"""OpenAI's x-ratelimit headers of one allowance."""

from __future__ import annotations

import math

from http_gateway.limits.allowance import Allowance
from http_gateway.limits.token_bucket import TokenBucket

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
