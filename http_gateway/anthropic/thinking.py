"""Anthropic's `thinking`: whether the model is to reason, how long, and what of it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from http_gateway.openai.unsupported import refuse_unsupported
from sax.errors import InvalidRequest
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.format import quoted

KINDS = ("enabled", "disabled", "adaptive")
DISPLAYS = ("summarized", "updates", "omitted")
MISMATCHES = ("error", "drop_block")
_BUDGET = field(RequestRoute.MESSAGES, "thinking.budget_tokens")


@dataclass(frozen=True, slots=True)
class AskedThinking:
    kind: str = ""  # one of KINDS; "": as the model's template has it
    budget: int | None = None  # tokens of reasoning
    # With False the blocks of reasoning are empty. Else they have all of it: no model here writes
    # summaries or updates.
    shown: bool = True


def read_thinking(value: Mapping[str, object] | None) -> AskedThinking:
    """Raises InvalidRequest or UnsupportedParameter naming the field."""
    if value is None:
        return AskedThinking()
    fields = dict(value)
    kind, budget = fields.pop("type", None), fields.pop("budget_tokens", None)
    display, binding = fields.pop("display", None), fields.pop("block_binding", None)
    kind = _one_of(KINDS, kind, "thinking.type")
    if display is not None:
        display = _one_of(DISPLAYS, display, "thinking.display")
    # Reasoning is not signed here, so that none fails the check that block_binding is about.
    if binding not in (None, {}, *({"prefix_mismatch_behavior": each} for each in MISMATCHES)):
        raise InvalidRequest(
            "thinking.block_binding: send a prefix_mismatch_behavior of error or drop_block",
            param="thinking.block_binding",
        )
    refuse_unsupported(fields, {}, at="thinking.")
    return AskedThinking(kind, _read_budget(kind, budget), display != "omitted")


def _one_of(known: tuple[str, ...], value: object, at: str) -> str:
    if isinstance(value, str) and value in known:
        return value
    raise InvalidRequest(f"{at} is {quoted(value)}: give one of {', '.join(known)}", param=at)


def _read_budget(kind: str, value: object) -> int | None:
    if (kind == "enabled") != (value is not None):
        raise InvalidRequest(
            "thinking.budget_tokens belongs to the type enabled, and only there",
            param="thinking.budget_tokens",
        )
    if value is None:
        return None
    _BUDGET.read(value)
    return value if isinstance(value, int) else None
