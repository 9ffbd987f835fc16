"""Saxml's trailer that tells a caller what its query cost."""

from __future__ import annotations

from typing import Any

TRAILER = "query_cost_v0"


def tell_cost(context: Any, device_ms: int) -> None:
    """Send the cost behind the reply; nothing for 0, as Saxml does."""
    if device_ms:
        context.set_trailing_metadata(((TRAILER, str(device_ms)),))
