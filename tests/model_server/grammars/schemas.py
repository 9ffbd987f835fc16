"""JSON Schemas of many shapes."""

from __future__ import annotations

from hypothesis import strategies as st

_SCALARS = ("string", "integer", "number", "boolean", "null")

SCHEMAS = st.recursive(
    st.one_of(
        st.sampled_from([{"type": name} for name in _SCALARS]),
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
        st.dictionaries(st.sampled_from(["a", "name", "x y", "\u00fc"]), inner, max_size=3).map(
            lambda fields: {
                "type": "object",
                "properties": fields,
                "required": sorted(fields),
                "additionalProperties": False,
            }
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
    ),
    max_leaves=6,
)
