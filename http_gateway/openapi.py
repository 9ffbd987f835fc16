"""Schemas in /openapi.json for requests that routes parse themselves.

Routes parse their own bodies (curl's default content type is not JSON, and Saxml sends bodies with
GET), so FastAPI cannot see the schemas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return `openapi_extra` for a route with this body; references are inlined."""
    schema = model.model_json_schema()
    inlined = _inline(schema, schema.pop("$defs", {}))
    return {"requestBody": {"content": {"application/json": {"schema": inlined}}}}


def _inline(node: object, definitions: Mapping[str, object]) -> object:
    if isinstance(node, list):
        return [_inline(item, definitions) for item in cast("list[object]", node)]
    if not isinstance(node, dict):
        return node
    fields = cast("dict[str, object]", node)
    reference = fields.get("$ref")
    if isinstance(reference, str):
        return _inline(definitions[reference.rpartition("/")[2]], definitions)
    return {key: _inline(value, definitions) for key, value in fields.items()}


def query_of(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema()
    required = schema.get("required", [])
    return {
        "parameters": [
            {"name": name, "in": "query", "required": name in required, "schema": field}
            for name, field in schema["properties"].items()
        ]
    }
