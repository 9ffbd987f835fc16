"""LoRA adapters as published models: their path, and the model that they belong to."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sax.errors import InvalidName, InvalidRequest
from sax.format import shortened
from sax.names import ModelId
from sax.types import ModelSpec

ADAPTER_PATH = "lora"
BASE = "BASE"  # the override that names the base


def base_of(spec: ModelSpec) -> str:
    """Return the base of a published adapter; "" for any other model."""
    if spec.model_path != ADAPTER_PATH:
        return ""
    try:
        return parse_base(spec.overrides)
    except InvalidRequest:
        return ""  # in a record of another version


def parse_base(overrides: Mapping[str, str]) -> str:
    """Return the name of the base. Raises InvalidRequest."""
    text = overrides.get(BASE, '""')
    try:
        return str(ModelId.parse(str(json.loads(text))))
    except (ValueError, RecursionError, InvalidName) as exc:
        raise InvalidRequest(
            f"{BASE} is {shortened(text)}: name the model that the adapter belongs to, as in "
            f"{BASE}='\"/sax/test/base\"'",
            param=f"overrides.{BASE}",
        ) from exc
