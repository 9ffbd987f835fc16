"""Ids of what is kept: they tell when it was made, so that ids in order are in order of time."""

from __future__ import annotations

import re
import uuid

_ID = re.compile(r"[a-z]+[_-]([0-9a-f]{10})[0-9a-f]{22}")


def new_id(prefix: str, now_s: float) -> str:
    """prefix: with the dash or underscore that ends it."""
    return f"{prefix}{int(now_s):010x}{uuid.uuid4().hex[:22]}"


def made_at(id: str, prefix: str) -> int | None:
    """Return the second that an id was made in, since the epoch; None: it is no such id."""
    found = _ID.fullmatch(id) if id.startswith(prefix) else None
    return int(found[1], 16) if found else None
