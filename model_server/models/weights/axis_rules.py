"""Sharding rules: the mesh axis for each logical axis of a model, and overrides of them.

The mesh has Saxml's three axes: `replica`, `data` (data_mdl2 there) and `model` (mdl).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from sax.errors import InvalidRequest

AXES = ("replica", "data", "model")
_PARAM = "overrides.SHARDING_RULES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Mesh axis for each logical axis; None: replicated."""

    vocab: str | None = "model"
    heads: str | None = "model"
    ffw: str | None = "model"
    experts: str | None = "model"
    embed: str | None = "data"
    tokens: str | None = None  # rows of a step between attention and feed-forwards; no weight axis

    def of(self, logical: str | None) -> str | None:
        return None if logical is None else getattr(self, logical)


LOGICAL = tuple(field.name for field in fields(Rules))
DEFAULT_RULES = Rules()


def parse_rules(given: Any) -> Rules:
    """Apply an override to the default rules. Raises InvalidRequest."""
    if given is None:
        return DEFAULT_RULES
    if not isinstance(given, Mapping):
        raise InvalidRequest(
            f"SHARDING_RULES is {json.dumps(given)}: give an object mapping logical to mesh axes, "
            'e.g. {"experts": "data"}',
            param=_PARAM,
        )
    for logical, axis in given.items():
        _check("logical axis", logical, LOGICAL)
        if axis is not None:
            _check(f'mesh axis for "{logical}"', axis, AXES, " or null")
    return replace(DEFAULT_RULES, **given)


def _check(what: str, given: Any, known: Sequence[str], more: str = "") -> None:
    if given in known:
        return
    close = difflib.get_close_matches(str(given), known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    raise InvalidRequest(
        f"SHARDING_RULES has an unknown {what}, {json.dumps(given)}: {hint}use "
        f"{', '.join(known)}{more}",
        param=_PARAM,
    )
