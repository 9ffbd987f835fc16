"""Messages between a server and the process that reads the constraints of requests."""

from __future__ import annotations

from typing import Literal

import msgspec

MAX_ANSWER = 1 << 27  # bytes


class ConstraintAsk(msgspec.Struct, frozen=True, array_like=True):
    """Read one constraint."""

    field: str
    value: str | bool | tuple[str, ...]
    specials: dict[str, int]  # the model's control tokens by their text


class ConstraintAnswer(msgspec.Struct, frozen=True, array_like=True):
    kind: Literal["grammar", "refused", "ended"]
    text: str  # the grammar, why it is refused, or how it ended the process
