"""JSON Schemas of many shapes."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

_TREE = {
    "type": "object",
    "properties": {
        "v": {"type": "integer"},
        "of": {"type": "array", "items": {"$ref": "#/$defs/t"}},
    },
    "required": ["v", "of"],
    "additionalProperties": False,
}
_BOUNDED: list[dict[str, Any]] = [
    {"type": "integer", "minimum": -5, "maximum": 300},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "string", "minLength": 2, "maxLength": 9},
    {"type": "string", "pattern": "^[a-z]{2,5}-[0-9]{1,3}$"},
    {"$ref": "#/$defs/t"},
]
_SCALARS = ("string", "integer", "number", "boolean", "null")

_ANY = st.recursive(
    st.one_of(
        st.sampled_from([{"type": name} for name in _SCALARS]),
        st.sampled_from(_BOUNDED),
        st.lists(st.sampled_from(["a", "b c", "\u00e9", 'q"', 1, True, None]), min_size=1).map(
            lambda values: {"enum": values}
        ),
    ),
    lambda inner: st.one_of(
        st.builds(
            lambda items, most: {"type": "array", "items": items, "maxItems": most},
            inner,
            st.integers(1, 3),
        ),
        st.builds(
            lambda fields, optional: {
                "type": "object",
                "properties": fields,
                "required": sorted(fields)[optional:],
                "additionalProperties": False,
            },
            st.dictionaries(st.sampled_from(["a", "name", "x y", "\u00fc"]), inner, max_size=3),
            st.integers(0, 2),
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
    ),
    max_leaves=6,
)

SCHEMAS = _ANY.map(lambda schema: {**schema, "$defs": {"t": _TREE}})
