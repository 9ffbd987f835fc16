"""Converts the constraint of a request to the grammar that llguidance compiles.

Errors name the field.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from llguidance import LLMatcher, StructTag
from llguidance.gbnf_to_lark import any_to_lark

from model_server.grammars.compilable import compilable, escapes
from model_server.grammars.endless import endless
from model_server.grammars.tag_format import TagFormats
from sax.errors import InvalidRequest
from sax.fields.sampling import UNCHANGED
from sax.types import SamplingParams

# Without a bound on white space an answer may be nothing else.
_JSON: Any = {"whitespace_pattern": r"[ \n\t]{0,16}", "lenient": False}


class Constraint(NamedTuple):
    """Constraint on an answer, as the request gave it: the field and its value."""

    field: str
    value: str | bool | tuple[str, ...]


def constraint_of(sampling: SamplingParams) -> Constraint | None:
    """Return the constraint, if there is one. Raises InvalidRequest for fields that contradict."""
    given = [name for name in _FIELDS if getattr(sampling, name) != getattr(UNCHANGED, name)]
    if not given:
        return None
    if len(given) > 1:
        raise InvalidRequest(
            f"{given[0]} and {given[1]} both say what the answer must be: send one of them",
            param=given[1],
        )
    check_end(sampling, given[0])
    return Constraint(given[0], getattr(sampling, given[0]))


def check_end(sampling: SamplingParams, field: str) -> None:
    """Raise InvalidRequest for what contradicts a field that decides where the answer ends."""
    for other in ("ignore_eos", "min_tokens"):
        if getattr(sampling, other) != getattr(UNCHANGED, other):
            raise InvalidRequest(
                f"{other} is {getattr(sampling, other)} and {field} decides where the answer "
                "ends: leave one of them out",
                param=other,
            )


def grammar_of(constraint: Constraint, specials: Mapping[str, int]) -> str:
    """Return the grammar in llguidance's own form; specials: control tokens by their text.

    Raises InvalidRequest. Takes time for long grammars: run it within a limit.
    """
    try:
        return _READERS[constraint.field](constraint.value, specials)
    except InvalidRequest:
        raise
    except RecursionError as exc:
        raise _wrong(constraint.field, "it is nested too deeply") from exc
    except Exception as exc:  # readers of the library raise any kind
        raise _wrong(constraint.field, str(exc)) from exc


def _wrong(field: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{field} cannot be used: {why[:300]}", param=field)


def _json_schema(source: str, specials: Mapping[str, int]) -> str:
    schema = json.loads(source)
    if not isinstance(schema, dict | bool):
        raise _wrong("json_schema", "send a JSON Schema, which is an object or true or false")
    if isinstance(schema, bool):
        return LLMatcher.grammar_from_json_schema({"x-guidance": _JSON} if schema else {"not": {}})
    known = cast("dict[str, Any]", schema)
    _check_end(known, "json_schema")
    return LLMatcher.grammar_from_json_schema(compilable(known), overrides=_writing(known))


def _check_end(schema: Mapping[str, Any], field: str) -> None:
    if reference := endless(schema):
        raise _wrong(
            field,
            f"no JSON could ever end under {reference}, which needs itself: make a property "
            "optional, or let it be something else, like null",
        )


def _writing(schema: Mapping[str, Any]) -> Any:
    """Return how JSON is written: spaced as it likes, or not at all if the schema says so."""
    said = schema.get("x-guidance", {})
    letters = {"json_allowed_escapes": escapes(schema)}
    if said in ({}, {"whitespace_flexible": True}):
        return _JSON | letters
    if said == {"whitespace_flexible": False}:
        return {**said, "lenient": False} | letters
    raise _wrong("json_schema", 'x-guidance may only be {"whitespace_flexible": false} or true')


def _json_object(value: bool, specials: Mapping[str, int]) -> str:
    return LLMatcher.grammar_from_json_schema({"type": "object"}, overrides=_JSON)


def _regex(source: str, specials: Mapping[str, int]) -> str:
    return LLMatcher.grammar_from_regex(source)


def _choice(texts: Sequence[str], specials: Mapping[str, int]) -> str:
    options = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
    return LLMatcher.grammar_from_lark(f"start: {options}")


def _grammar(source: str, specials: Mapping[str, int]) -> str:
    return LLMatcher.grammar_from_lark(any_to_lark(source))


def _structural_tag(source: str, specials: Mapping[str, int]) -> str:
    """Read {"structures": [{begin, schema, end}], "triggers": [...], "at_least_one": bool}, or
    {"format": ...}."""
    value = _object(json.loads(source), "structural_tag")
    if "format" in value:
        if unknown := sorted(value.keys() - {"type", "format"}):
            raise _wrong("structural_tag", f"{unknown[0]} does not go with format: leave it out")
        return TagFormats(specials, _tag_schema).grammar(value["format"])
    unknown = set(value) - {"type", "structures", "triggers", "at_least_one"}
    if unknown:
        raise _wrong("structural_tag", f"it has the unknown key {min(unknown)}")
    triggers = [str(trigger) for trigger in value.get("triggers") or ()]
    tags = [_tag(_object(each, "structures"), triggers) for each in value.get("structures") or ()]
    if not tags:
        raise _wrong("structural_tag", "structures is empty: give at least one")
    special = all(tag.trigger in specials for tag in tags)
    made = StructTag.to_grammar(tags, assume_special=special)
    if value.get("at_least_one"):
        made = made.replace(")* tag_end", ")+ tag_end", 1)
    return LLMatcher.grammar_from_lark(made)


def _tools(source: str, specials: Mapping[str, int]) -> str:
    """Read a format that `call_format` made; what is wrong with it is in the user's schemas."""
    try:
        return TagFormats(specials, _tag_schema).grammar(json.loads(source)["format"])
    except InvalidRequest as exc:
        raise _wrong("tools", exc.text) from exc


def constrained_format(constraint: Constraint) -> dict[str, Any]:
    """Return the constraint as a format, to be part of another. Raises InvalidRequest."""
    field, value = constraint
    try:
        if field == "json_object":
            return {"type": "json_schema", "json_schema": {"type": "object"}}
        if field == "json_schema" and isinstance(schema := json.loads(str(value)), dict):
            return {"type": "json_schema", "json_schema": schema}
        if field == "choice" and isinstance(value, tuple):
            options = [{"type": "const_string", "value": each} for each in value]
            return {"type": "or", "elements": options}
        if field == "regex":
            return {"type": "regex", "pattern": value}
        if field == "grammar":
            return {"type": "grammar", "grammar": value}
        if field == "structural_tag" and (tree := json.loads(str(value)).get("format")):
            return tree
    except (ValueError, AttributeError, RecursionError) as exc:
        raise _wrong(field, str(exc)) from exc
    raise _wrong(field, "it does not go with reasoning or tools: use json_schema instead")


def _tag(structure: Mapping[str, Any], triggers: Sequence[str]) -> StructTag:
    begin, end = structure.get("begin"), structure.get("end", "")
    if not isinstance(begin, str) or not isinstance(end, str):
        raise _wrong("structural_tag", "begin and end are texts")
    fitting = [trigger for trigger in triggers if trigger and begin.startswith(trigger)]
    if not fitting:
        raise _wrong("structural_tag", f"no trigger begins {begin!r}")
    schema = _tag_schema(_object(structure.get("schema", {"type": "object"}), "schema"))
    return StructTag(trigger=fitting[0], begin=begin, grammar=schema, end=end)


def _tag_schema(schema: dict[str, Any]) -> dict[str, Any]:
    _check_end(schema, "structural_tag")
    return {**compilable(schema), "x-guidance": _writing(schema)}


def _object(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong("structural_tag", f"{name} must be an object")
    return cast("dict[str, Any]", value)


_READERS: dict[str, Callable[[Any, Mapping[str, int]], str]] = {
    "json_schema": _json_schema,
    "json_object": _json_object,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "structural_tag": _structural_tag,
}
_FIELDS = tuple(_READERS)  # of a request's sampling
_READERS["tools"] = _tools
