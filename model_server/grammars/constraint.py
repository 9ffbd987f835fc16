"""Converts the constraint of a request to the grammar that llguidance compiles.

Errors name the field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, cast

from llguidance import LLMatcher, StructTag
from llguidance.gbnf_to_lark import any_to_lark

from model_server.grammars.endless import endless
from model_server.grammars.tag_format import TagFormats
from model_server.grammars.weakened import Weakening
from sax.errors import InvalidRequest
from sax.fields.sampling import UNCHANGED
from sax.types import SamplingParams

# Without a bound on white space an answer may be nothing else.
_JSON: Any = {"whitespace_pattern": r"[ \n\t]{0,16}", "lenient": False}
_MAPPED = frozenset({"properties", "patternProperties", "$defs", "definitions"})  # names -> schemas
# No schemas, or schemas that no grammar follows.
_VALUES = frozenset(
    {
        *("const", "enum", "default", "example", "examples"),
        *("not", "if", "then", "else", "contains", "dependentSchemas", "dependencies"),
    }
)
# Formats that the compiler knows. Others are annotations (JSON Schema 2020-12, Validation, 7.2.1).
_FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"}
)
_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"  # the years of a century but its first
_LEAP = f"(?:[0-9]{{2}}{_FOURTH}|(?:00|{_FOURTH})00)"
_DATE = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP}-02-29)"
)
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60)(?:\.[0-9]+)?"
    "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_PATTERNS = {"date": f"^{_DATE}$", "date-time": f"^{_DATE}[Tt]{_TIME}$"}
_WHOLE = float(2**63 - 1024)  # the largest bound of whole numbers that float64 has
_DECIMAL = 1e18
# Between an exclusive bound and the inclusive one in its place, where the compiler takes the
# bound's own whole number for a number within.
_STEP = Decimal("1e-9")
# Towards which side they leave more room.
_BOUNDS = {"minimum": -1, "exclusiveMinimum": -1, "maximum": 1, "exclusiveMaximum": 1}
_CONTROL = re.compile(r"(?<!\\)(?:\\\\)*\\u00(?:[01]|7f)")


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


class ReadConstraint(NamedTuple):
    """A constraint as the compiler takes it."""

    grammar: str  # in llguidance's own form
    dropped: frozenset[str]  # keywords of its schemas that the grammar does not hold


def read_constraint(
    constraint: Constraint, specials: Mapping[str, int], *, any_of_one: bool = False
) -> ReadConstraint:
    """Return the grammar of a constraint; specials: control tokens by their text.

    any_of_one: of `oneOf` any may hold, and several together. Raises InvalidRequest. Takes time for
    long grammars: run it within a limit.
    """
    reading = _ConstraintReading(specials, any_of_one=any_of_one)
    try:
        grammar = _READERS[constraint.field](reading, constraint.value)
        return ReadConstraint(grammar, frozenset(reading.dropped))
    except InvalidRequest:
        raise
    except RecursionError as exc:
        raise _wrong(constraint.field, "it is nested too deeply") from exc
    except Exception as exc:  # readers of the library raise any kind
        raise _wrong(constraint.field, str(exc)) from exc


def _wrong(field: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{field} cannot be used: {why[:300]}", param=field)


class _ConstraintReading:
    """Reads the constraint of one request."""

    def __init__(self, specials: Mapping[str, int], *, any_of_one: bool) -> None:
        self.dropped: set[str] = set()
        self._specials = specials
        self._any_of_one = any_of_one

    def json_schema(self, source: str) -> str:
        schema = json.loads(source)
        if not isinstance(schema, dict | bool):
            raise _wrong("json_schema", "send a JSON Schema, which is an object or true or false")
        if isinstance(schema, bool):
            known: Any = {"x-guidance": _JSON} if schema else {"not": {}}
            return LLMatcher.grammar_from_json_schema(known)
        known = cast("dict[str, Any]", schema)
        made = self._compilable(known, "json_schema")
        return LLMatcher.grammar_from_json_schema(made, overrides=self._writing(known))

    def json_object(self, value: bool) -> str:
        return LLMatcher.grammar_from_json_schema({"type": "object"}, overrides=_JSON)

    def regex(self, source: str) -> str:
        return LLMatcher.grammar_from_regex(source)

    def choice(self, texts: Sequence[str]) -> str:
        options = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
        return LLMatcher.grammar_from_lark(f"start: {options}")

    def grammar(self, source: str) -> str:
        return LLMatcher.grammar_from_lark(any_to_lark(source))

    def structural_tag(self, source: str) -> str:
        """Read {"structures": [{begin, schema, end}], "triggers": [...], "at_least_one": bool}, or
        {"format": ...}."""
        value = _object(json.loads(source), "structural_tag")
        if "format" in value:
            if unknown := sorted(value.keys() - {"type", "format"}):
                raise _wrong(
                    "structural_tag", f"{unknown[0]} does not go with format: leave it out"
                )
            return TagFormats(self._specials, self._tag_schema).grammar(value["format"])
        unknown = set(value) - {"type", "structures", "triggers", "at_least_one"}
        if unknown:
            raise _wrong("structural_tag", f"it has the unknown key {min(unknown)}")
        triggers = [str(trigger) for trigger in value.get("triggers") or ()]
        structures = value.get("structures") or ()
        tags = [self._tag(_object(each, "structures"), triggers) for each in structures]
        if not tags:
            raise _wrong("structural_tag", "structures is empty: give at least one")
        special = all(tag.trigger in self._specials for tag in tags)
        made = StructTag.to_grammar(tags, assume_special=special)
        if value.get("at_least_one"):
            made = made.replace(")* tag_end", ")+ tag_end", 1)
        return LLMatcher.grammar_from_lark(made)

    def tools(self, source: str) -> str:
        """Read a format that `call_format` made; what is wrong with it is in the user's schemas."""
        try:
            return TagFormats(self._specials, self._tag_schema).grammar(
                json.loads(source)["format"]
            )
        except InvalidRequest as exc:
            raise _wrong("tools", exc.text) from exc

    def _compilable(self, schema: dict[str, Any], field: str) -> dict[str, Any]:
        made = _compilable(schema)
        if not isinstance(made.schema, dict):
            raise _wrong(field, "no JSON keeps to the schema: it denies everything")
        if reference := endless(made.schema):
            raise _wrong(
                field,
                f"no JSON could ever end under {reference}, which needs itself: make a property "
                "optional, or let it be something else, like null",
            )
        self.dropped |= made.dropped
        return made.schema

    def _writing(self, schema: Mapping[str, Any]) -> Any:
        """Return how JSON is written: spaced as it likes, or not at all if the schema says so."""
        said = schema.get("x-guidance", {})
        own = {"json_allowed_escapes": _escapes(schema), "coerce_one_of": self._any_of_one}
        if said in ({}, {"whitespace_flexible": True}):
            return _JSON | own
        if said == {"whitespace_flexible": False}:
            return {**said, "lenient": False} | own
        raise _wrong("json_schema", 'x-guidance may only be {"whitespace_flexible": false} or true')

    def _tag(self, structure: Mapping[str, Any], triggers: Sequence[str]) -> StructTag:
        begin, end = structure.get("begin"), structure.get("end", "")
        if not isinstance(begin, str) or not isinstance(end, str):
            raise _wrong("structural_tag", "begin and end are texts")
        fitting = [trigger for trigger in triggers if trigger and begin.startswith(trigger)]
        if not fitting:
            raise _wrong("structural_tag", f"no trigger begins {begin!r}")
        schema = _object(structure.get("schema", {"type": "object"}), "schema")
        return StructTag(trigger=fitting[0], begin=begin, grammar=self._tag_schema(schema), end=end)

    def _tag_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        made = self._compilable(schema, "structural_tag")
        return {**made, "x-guidance": self._writing(schema)}


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


def _object(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong("structural_tag", f"{name} must be an object")
    return cast("dict[str, Any]", value)


_READERS: dict[str, Callable[[_ConstraintReading, Any], str]] = {
    "json_schema": _ConstraintReading.json_schema,
    "json_object": _ConstraintReading.json_object,
    "regex": _ConstraintReading.regex,
    "choice": _ConstraintReading.choice,
    "grammar": _ConstraintReading.grammar,
    "structural_tag": _ConstraintReading.structural_tag,
}
_FIELDS = tuple(_READERS)  # of a request's sampling
_READERS["tools"] = _ConstraintReading.tools


class CompilableSchema(NamedTuple):
    """A schema to compile."""

    schema: dict[str, Any] | bool
    dropped: frozenset[str]  # keywords that answers must be checked by


def _compilable(schema: Mapping[str, Any]) -> CompilableSchema:
    """Return a schema that the compiler of grammars takes, and takes rightly.

    Every answer under it keeps to the old one, but for the keywords that were taken out of it
    (`weakened`). Where the compiler cannot say all that the old one allows, it allows a little
    less: numbers beyond 1e18, and whole ones beyond 2^63. Raises RecursionError for a schema that
    is nested too deeply.
    """
    weakening = Weakening(schema)
    made = _Rewriting(weakening).part(schema)
    return CompilableSchema(made, frozenset(weakening.dropped))


class _Rewriting:
    def __init__(self, weakening: Weakening) -> None:
        self._weakening = weakening

    def part(self, schema: Mapping[str, Any]) -> dict[str, Any] | bool:
        parts = {key: self._converted(key, value) for key, value in schema.items()}
        if self._weakening.weaken(parts) is False:
            return False
        if (name := parts.get("format")) is not None and name not in _FORMATS:
            del parts["format"]
        elif name in _PATTERNS:
            parts["allOf"] = [*parts.get("allOf", ()), {"pattern": _PATTERNS[name]}]
            del parts["format"]
        _bound(parts)
        return parts

    def _converted(self, key: str, value: Any) -> Any:
        if isinstance(value, dict) and key not in _VALUES:
            if key in _MAPPED:
                given = cast("dict[str, Any]", value).items()
                return {name: self._schema(each) for name, each in given}
            return self.part(cast("dict[str, Any]", value))
        if isinstance(value, list) and key not in _VALUES:
            return [self._schema(each) for each in cast("list[Any]", value)]
        return value

    def _schema(self, value: Any) -> Any:
        return self.part(cast("dict[str, Any]", value)) if isinstance(value, dict) else value


def _escapes(schema: Mapping[str, Any]) -> str:
    r"""Return the letters that may follow a backslash in JSON under a schema.

    Not u: the name of a property that is written with \u would pass as one of another name. But a
    schema that names control characters needs it.
    """
    return 'nrbtf\\"u' if _CONTROL.search(json.dumps(schema)) else 'nrbtf\\"'


def _bound(parts: dict[str, Any]) -> None:
    """Move bounds of numbers to where the compiler takes them."""
    whole = parts.get("type") == "integer"
    most = _WHOLE if whole else _DECIMAL
    bounds = {key: parts[key] for key in _BOUNDS if _is_number(parts.get(key))}
    for key, bound in bounds.items():
        if bound * _BOUNDS[key] > most:
            parts[key] = bounds[key] = int(most) * _BOUNDS[key]
    low = max((bounds[key] for key in _BOUNDS.keys() & bounds if _BOUNDS[key] < 0), default=None)
    high = min((bounds[key] for key in _BOUNDS.keys() & bounds if _BOUNDS[key] > 0), default=None)
    if whole or low is None or high is None or not 0 < high - low <= 1:
        return
    step = min(_STEP, (Decimal(str(high)) - Decimal(str(low))) / 4)
    for key, inclusive, nearer in (
        ("exclusiveMinimum", "minimum", max),
        ("exclusiveMaximum", "maximum", min),
    ):
        if key in bounds:
            moved = float(Decimal(str(bounds[key])) - _BOUNDS[key] * step)
            parts[inclusive] = nearer(moved, bounds.get(inclusive, moved))
            del parts[key]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
