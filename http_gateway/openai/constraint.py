"""Reads what an answer must be from the fields that OpenAI and vLLM have for it.

Each becomes one of the fields of the table of sampling fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from http_gateway.openai.tools import refuse_others
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.format import shortened

# These change nothing: whether an answer keeps to its schema is not a matter of degree, and a
# name or a description is for people.
_LABELS = ("name", "description", "strict")


def constraint_of(body: Mapping[str, object]) -> dict[str, Any]:
    """Return the field of SamplingParams that the body's fields stand for, if there is one.

    Raises InvalidRequest, also if there are several.
    """
    found = {
        name: CONSTRAINTS[name](name, value) for name, value in body.items() if value is not None
    }
    said = [name for name, made in found.items() if made]
    if len(said) > 1:
        raise InvalidRequest(
            f"{said[0]} and {said[1]} both say what the answer must be: send one of them",
            param=said[1],
        )
    return found[said[0]] if said else {}


def _response_format(name: str, value: Any) -> dict[str, Any]:
    kind, rest = value.get("type"), {key: each for key, each in value.items() if key != "type"}
    if kind == "text" and not rest:
        return {}
    if kind == "json_object" and not rest:
        return {"json_object": True}
    if kind == "json_schema" and set(rest) == {"json_schema"}:
        return labelled_schema(f"{name}.json_schema", rest["json_schema"])
    if kind == "structural_tag":
        return _structural_tag(name, rest)
    raise UnsupportedParameter(
        f"{name} is {_shown(value)}: send a type of text, json_object, json_schema or "
        "structural_tag, with the fields of that type only",
        param=name,
    )


def labelled_schema(name: str, value: object) -> dict[str, Any]:
    """Read {"name": ..., "schema": ...}. Raises InvalidRequest or UnsupportedParameter."""
    given: dict[str, object] = {}
    if isinstance(value, dict):
        given = cast("dict[str, object]", value)
    if "schema" not in given:
        raise InvalidRequest(f"{name} has no schema: give an object with one", param=name)
    refuse_others({key: given[key] for key in given if key not in (*_LABELS, "schema")}, name)
    return _json(f"{name}.schema", given["schema"])


def _structured_outputs(name: str, value: Any) -> dict[str, Any]:
    readers = {key.removeprefix("guided_"): read for key, read in _GUIDED.items()}
    readers |= {"json_object": _json_object, "structural_tag": _structural_tag}
    made: dict[str, Any] = {}
    compact = value.get("disable_any_whitespace")
    if compact is not None and not isinstance(compact, bool):
        path = f"{name}.disable_any_whitespace"
        raise InvalidRequest(f"{path} is {_shown(compact)}: give true or false", param=path)
    for key, each in value.items():
        if key == "disable_any_whitespace":
            continue
        path = f"{name}.{shortened(key)}"
        if key not in readers:
            refuse_others({key: each}, name)
        elif each is not None:
            made |= readers[key](path, each)
    if len(made) > 1:
        raise InvalidRequest(f"{name} has {' and '.join(made)}: send one of them", param=name)
    return _compact(name, made) if compact else made


def _compact(name: str, made: dict[str, Any]) -> dict[str, Any]:
    """Return the field for JSON without white space between its parts."""
    path = f"{name}.disable_any_whitespace"
    if not {"json_schema", "json_object"} & made.keys():
        raise InvalidRequest(f"{path} is for json and json_object: leave it out", param=path)
    try:
        schema: Any = json.loads(made.get("json_schema", '{"type": "object"}'))
    except (ValueError, RecursionError) as exc:
        raise InvalidRequest(f"{name}.json is no JSON: {exc}", param=f"{name}.json") from exc
    if not isinstance(schema, dict):
        raise InvalidRequest(f"{path} needs a schema that is an object: give one", param=path)
    return _json(f"{name}.json", {**schema, "x-guidance": {"whitespace_flexible": False}})


def _json(name: str, value: Any) -> dict[str, Any]:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return {"json_schema": _within(name, "json_schema", text)}


def _json_object(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} is {_shown(value)}: give true or false", param=name)
    return {"json_object": True} if value else {}


def _structural_tag(name: str, value: Any) -> dict[str, Any]:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return {"structural_tag": _within(name, "structural_tag", text)}


def _regex(name: str, value: Any) -> dict[str, Any]:
    return {"regex": _within(name, "regex", value)}


def _grammar(name: str, value: Any) -> dict[str, Any]:
    return {"grammar": _within(name, "grammar", value)}


def _choice(name: str, value: Any) -> dict[str, Any]:
    if value == []:
        raise InvalidRequest(f"{name} is empty: give at least one text", param=name)
    entries = tuple(cast("list[object]", value)) if isinstance(value, list) else value
    return {"choice": _within(name, "choice", entries)}


def _within(name: str, own: str, value: Any) -> Any:
    """Return the value. Raises InvalidRequest if it is not as our own field must be."""
    field(RequestRoute.STREAM, own).read(value, name)
    return value


def _shown(value: object) -> str:
    return shortened(json.dumps(value, default=str))


Read = Callable[[str, Any], dict[str, Any]]
_GUIDED: dict[str, Read] = {
    "guided_json": _json,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _grammar,
}
CONSTRAINTS: dict[str, Read] = {
    "response_format": _response_format,
    "structured_outputs": _structured_outputs,
    **_GUIDED,
}
