"""Messages between a server and the process that reads the constraints of requests."""

from __future__ import annotations

from typing import Literal

import msgspec

MAX_ANSWER = 1 << 27  # bytes


class ConstraintAsk(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Read one constraint."""

    field: str
    value: str | bool | tuple[str, ...]
    specials: dict[str, int]  # the model's control tokens by their text


class CheckAsk(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Check one finished answer."""

    schema: str
    answer: str


class ConstraintAnswer(msgspec.Struct, frozen=True, array_like=True):
    kind: Literal["grammar", "refused", "ended", "checked"]
    # The grammar, why it is refused, how it ended the process, or how the answer breaks its schema
    text: str
    partly: bool = False  # the grammar does not hold all of the schema
