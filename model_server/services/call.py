"""The account, the deadline and the span of a gRPC call, where the request itself names none; and
Saxml's trailer that tells what a query cost."""

from __future__ import annotations

from typing import Any

from sax import tracing
from sax.auth.acl import account_of_peer
from sax.auth.credentials import ACCOUNT_KEY
from sax.fields.table import MOST_TIMEOUT_S

TRAILER = "query_cost_v0"


def tell_cost(context: Any, device_ms: int) -> None:
    """Send the cost behind the reply; nothing for 0, as Saxml does."""
    if device_ms:
        context.set_trailing_metadata(((TRAILER, str(device_ms)),))


_AT_ONCE_S = 0.001  # left of a deadline that has passed


def account_of_call(context: Any) -> str:
    """Return the account that the caller names, else its address. Neither is verified."""
    metadata: dict[str, str] = dict(context.invocation_metadata() or ())
    return metadata.get(ACCOUNT_KEY) or account_of_peer(context.peer())


def traceparent_of_call(context: Any) -> str:
    """Return the span that the caller names; "" for none."""
    metadata: dict[str, str] = dict(context.invocation_metadata() or ())
    return metadata.get(tracing.TRACEPARENT, "")


def time_left_s(context: Any) -> float | None:
    """Return the seconds to the call's deadline; None if it has none, or one beyond the bounds."""
    left_s: float | None = context.time_remaining()
    return None if left_s is None or left_s > MOST_TIMEOUT_S else max(left_s, _AT_ONCE_S)
