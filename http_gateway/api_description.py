"""The OpenAPI document in words: routes, their fields with bounds and examples, and types."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

Schema = Mapping[str, Any]

_KINDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "object": "object",
    "null": "null",
}
_MANY_OF = {
    "text": "texts",
    "whole number": "whole numbers",
    "number": "numbers",
    "object": "objects",
}
_MANY = {"string": "character", "array": "entry", "object": "field"}
_PLURALS = {"character": "characters", "entry": "entries", "field": "fields"}
_SIZES = {"string": "Length", "array": "Items", "object": "Properties"}


@dataclass(frozen=True, slots=True)
class DescribedField:
    """A field of a body, a query or a reply, in words."""

    name: str
    where: str  # body, query or path
    required: bool
    kind: str
    bounds: str
    text: str


@dataclass(frozen=True, slots=True)
class DescribedOperation:
    """One method of one path."""

    method: str
    path: str
    tag: str  # the family of the API
    text: str
    fields: tuple[DescribedField, ...]
    statuses: tuple[str, ...]
    reply: str  # the name of its type, or what it is; "": no body
    error: str
    stream: str  # in what a stream comes; "": there is none
    is_form: bool  # its body is a form with a file, not JSON
    example: dict[str, Any] | None  # a body that it takes; None: it takes none

    @property
    def anchor(self) -> str:
        return f"{self.method}-{self.path}".lower().translate(_ANCHOR)


_STREAMS = {"text/event-stream": "server-sent events", "application/x-ndjson": "lines of JSON"}
_ANCHOR = {ord(letter): "-" for letter in "/_ "} | {ord(letter): None for letter in "{}"}


def operations(document: Schema) -> Iterator[DescribedOperation]:
    """Yield every operation of an OpenAPI document, in its order."""
    for path, methods in document["paths"].items():
        for method, told in methods.items():
            responses: Schema = told["responses"]
            good: Schema = responses.get("200", {})
            content: Schema = told.get("requestBody", {}).get("content", {})
            stream = next(
                (words for kind, words in _STREAMS.items() if kind in good.get("content", {})), ""
            )
            yield DescribedOperation(
                method=method.upper(),
                path=path,
                tag=next(iter(told.get("tags", ())), ""),
                text=told.get("description", told["summary"]),
                fields=(*_parameters(told), *_body_fields(told)),
                statuses=tuple(sorted(responses)),
                reply=_content_kind(good),
                error=next((_content_kind(responses[s]) for s in responses if s >= "400"), ""),
                stream=stream,
                is_form="multipart/form-data" in content,
                example=next(
                    (example_of_body(each["schema"], bool(stream)) for each in content.values()),
                    None,
                ),
            )


def reply_types(document: Schema) -> Iterator[tuple[str, str, list[DescribedField]]]:
    """Yield every named type of a reply: its name, its text and its fields."""
    for name, schema in document["components"]["schemas"].items():
        yield name, schema.get("description", ""), list(fields_of_object(schema, "reply"))


def fields_of_object(schema: Schema, where: str) -> Iterator[DescribedField]:
    required = schema.get("required", ())
    for name, told in schema.get("properties", {}).items():
        yield DescribedField(
            name, where, name in required, kind_of(told), bounds_of(told), _text_of(told)
        )


def kind_of(schema: Schema) -> str:
    """Return the kind of a value in words."""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if branches := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(kind for each in branches if (kind := kind_of(each))))
    if "maxLength" in schema and "type" not in schema:
        return "text"
    if "maxProperties" in schema and "type" not in schema:
        return "object"
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " or ".join(json.dumps(value) for value in values if value is not None) or "null"
    kinds: str | list[str] = schema.get("type", "any")
    if isinstance(kinds, list):
        return " or ".join(_KINDS.get(kind, kind) for kind in kinds if kind != "null")
    if kinds == "array":
        entries: list[Schema] = schema.get("prefixItems") or [schema.get("items") or {}]
        named = (_MANY_OF.get(kind := kind_of(entry), kind) for entry in entries)
        return f"list of {', '.join(named)}"
    return "" if kinds == "null" else _KINDS.get(kinds, kinds)


def bounds_of(schema: Schema) -> str:
    """Return the bounds of a value in words; "" for none."""
    branches = schema.get("anyOf", [schema])
    return "; ".join(dict.fromkeys(each for branch in branches for each in _bounds(branch)))


def _bounds(schema: Schema) -> Iterator[str]:
    least, most = schema.get("minimum"), schema.get("maximum")
    if (above := schema.get("exclusiveMinimum")) is not None:
        yield f"above {above:g}" + ("" if most is None else f", at most {_number(most)}")
    elif least is not None and most is not None:
        yield f"{_number(least)} to {_number(most)}"
    elif least is not None:
        yield f"{_number(least)} or more"
    kind = schema.get("type") or ("string" if "maxLength" in schema else "object")
    if isinstance(kind, str) and (of := _MANY.get(kind)):
        most = schema.get(f"max{_SIZES[kind]}")
        if most is not None:
            yield f"at most {most:,} {of if most == 1 else _PLURALS[of]}"
    if kind == "array":
        yield from _bounds_of_entries(schema.get("items", {}))


def _bounds_of_entries(schema: Schema) -> Iterator[str]:
    for branch in schema.get("anyOf", [schema]):
        if branch.get("type") in ("string", "integer", "number"):
            yield from (f"each {bound}" for bound in _bounds(branch))


def _number(value: float) -> str:
    return f"{int(value):,}" if float(value).is_integer() else f"{value:,}"


def _text_of(schema: Schema) -> str:
    texts = [schema.get("description", ""), *(_text_of(each) for each in schema.get("anyOf", ()))]
    return " ".join(text for text in dict.fromkeys(texts) if text)


def _parameters(told: Schema) -> Iterator[DescribedField]:
    for each in told.get("parameters", ()):
        schema = each["schema"]
        text = each.get("description", "")
        yield DescribedField(
            each["name"], each["in"], each["required"], kind_of(schema), bounds_of(schema), text
        )


def _body_fields(told: Schema) -> Iterator[DescribedField]:
    content = told.get("requestBody", {}).get("content", {})
    for each in content.values():
        yield from fields_of_object(each["schema"], "body")


def _content_kind(response: Schema) -> str:
    for media_type, each in response.get("content", {}).items():
        if media_type == "application/json":
            return kind_of(each["schema"])
        if media_type not in _STREAMS:
            return media_type
    return ""


_NEW = "/sax/test/smollm2"  # a model that is to be published
# Values of an example, by the name of the field; others are made of their schema.
_EXAMPLES: Mapping[str, Any] = {
    "model": "MODEL",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "prompt": "The capital of France is",
    "input": "What is the capital of France?",
    "query": "What is the capital of France?",
    "documents": ["Paris is the capital of France.", "It rains in Spain."],
    "text_1": "What is the capital of France?",
    "text_2": ["Paris is the capital of France.", "It rains in Spain."],
    "input_prefix": "def add(a, b):\n    return ",
    "input_suffix": "\n",
    "destination": "copy",
    "model_path": "auto",
    "checkpoint": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "sax_cell": "/sax/test",
    "completion_window": "24h",
    "endpoint": "/v1/chat/completions",
    "items": [{"role": "user", "content": "Hello!"}],
    "from": "MODEL",
    "source": "MODEL",
    "max_tokens": 64,
    "max_output_tokens": 64,
    "stream": True,
}
_LENGTHS = ("max_tokens", "max_output_tokens")
_TEXTS = ("messages", "prompt", "input")  # one of which is shown where none is required


def example_of_body(schema: Schema, streams: bool) -> dict[str, Any]:
    """Return a body with the required fields and the usual ones; "MODEL" stands for a model."""
    fields: Schema = schema.get("properties", {})
    names = ["model", *schema.get("required", ())]
    if set(names) == {"model"}:
        names += [name for name in _TEXTS if name in fields][:1]
    names += [*_LENGTHS, *(["stream"] if streams else [])]
    made = {
        name: _EXAMPLES[name] if name in _EXAMPLES else example_of(fields[name])
        for name in dict.fromkeys(names)
        if name in fields and fields[name].get("enum") != [None]
    }
    return {**made, "model": _NEW} if "model_path" in made else made


def example_of(schema: Schema) -> Any:
    """Return a value that a schema takes."""
    if branches := schema.get("anyOf") or schema.get("oneOf"):
        return example_of(branches[0])
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return next((each for each in schema["enum"] if each is not None), None)
    match schema.get("type"):
        case "integer" | "number":
            return max(1, int(cast("float", schema.get("minimum", 1))))
        case "boolean":
            return False
        case "array":
            return [example_of(schema.get("items", {}))]
        case "object":
            return {}
        case _:
            return "text"
