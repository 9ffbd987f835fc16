"""Whom a gRPC call is for, where the request itself does not say."""

from __future__ import annotations

from typing import Any

from sax.auth.address import account_of_peer
from sax.auth.credentials import ACCOUNT_KEY


def account_of_call(context: Any) -> str:
    """Return the account that the caller names, else its address. Neither is verified."""
    metadata: dict[str, str] = dict(context.invocation_metadata() or ())
    return metadata.get(ACCOUNT_KEY) or account_of_peer(context.peer())
