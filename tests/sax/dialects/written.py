"""Writes calls in any form, as templates do: what readers must read back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sax.call_form import ID, INDEX, NAME, Arguments, CallForm

Call = tuple[str, Mapping[str, Any]]


def written(form: CallForm, calls: Sequence[Call]) -> str:
    texts = (
        _slots(form.head, name, n + form.first_index) + _arguments(form, values)
        + (form.tail.removeprefix(")") if form.arguments == Arguments.PYTHON else form.tail)
        for n, (name, values) in enumerate(calls)
    )  # fmt: skip
    return form.begin + form.between.join(texts) + form.end


def _slots(text: str, name: str, number: int) -> str:
    return text.replace(NAME, name).replace(INDEX, str(number)).replace(ID, "a1b2c3d4e")


def _arguments(form: CallForm, values: Mapping[str, Any]) -> str:
    match form.arguments:
        case Arguments.PAIRS:
            return form.comma.join(_pair(form, *item) for item in values.items())
        case Arguments.PYTHON:
            pairs = (f"{key}={json.dumps(value)}" for key, value in values.items())
            return f"{form.comma or ', '}".join(pairs) + ")"
        case Arguments.LOOSE:
            return _loose(form, values)
        case Arguments.TAGS:
            return "".join(_tag(form, *item) for item in values.items())
        case _:
            return json.dumps(values, ensure_ascii=False)


def _pair(form: CallForm, key: str, value: Any) -> str:
    text = value if isinstance(value, str) and not form.quoted else json.dumps(value)
    if form.cdata and isinstance(value, str) and "<" in value:
        text = f"<![CDATA[{value}]]>"
    return form.pair + key + form.behind_key(kind_of(value)) + text + form.close


def _tag(form: CallForm, key: str, value: Any) -> str:
    colon = form.behind_key("")
    return f"{form.pair}{key}{colon}{_tagged(form, value)}{form.close}{key}{colon}"


def _tagged(form: CallForm, value: Any) -> str:
    if isinstance(value, dict):
        return "".join(_tag(form, *item) for item in value.items())
    if isinstance(value, list):
        return "".join(_tag(form, form.item, each) for each in value)
    return value if isinstance(value, str) else json.dumps(value)


def _loose(form: CallForm, value: Any) -> str:
    if isinstance(value, str):
        return form.quote + value + form.quote
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_loose(form, each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_loose(form, each) for each in value) + "]"
    return json.dumps(value)


def kind_of(value: Any) -> str:
    kinds = {str: "string", bool: "boolean", type(None): "null", list: "array", dict: "object"}
    return kinds.get(type(value), "number")


def marks_of(form: CallForm) -> list[str]:
    """What no bare text may have in it: it ends it."""
    if form.arguments == Arguments.TAGS:
        return [form.pair]
    bare = form.arguments in (Arguments.PAIRS, Arguments.LOOSE)
    return [mark for mark in (form.close.strip(), form.quote, "]]>") if mark] if bare else []
