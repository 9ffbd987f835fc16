"""Reads a sound to write down: multipart/form-data with a file and how to answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import FormData, UploadFile

from http_gateway.openai.unsupported import refuse_unsupported
from http_gateway.openapi import Schema
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.table import fields_of
from sax.format import quoted
from sax.names import MODEL_NAME_PATTERN
from sax.speech.languages import code_of

FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
_GRANULARITIES = "timestamp_granularities"
_LISTS = (f"{_GRANULARITIES}[]", "include[]")
_STREAMED = ("json", "text")
# Field -> the values that change nothing. Any other value is refused.
_EXTRA: dict[str, tuple[object, ...]] = {
    "chunking_strategy": ("auto",),  # windows follow the timestamps
    "include[]": ([],),  # logprobs of tokens
    "known_speaker_names": (),
    "known_speaker_references": (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioForm:
    """A request of /v1/audio/*; "" and 0 mean the default."""

    file: UploadFile
    model: str
    language: str
    prompt: str
    response_format: str
    temperature: float
    stream: bool


def read_form(form: FormData, route: RequestRoute) -> AudioForm:
    """Raises InvalidRequest or UnsupportedParameter naming the field."""
    fields = _fields(form)
    file, rows = fields.pop("file", None), fields_of(route)
    if not isinstance(file, UploadFile):
        raise InvalidRequest("file: send a sound, in a part with a file name", param="file")
    rows["filename"].check_text(file.filename or "", "file")
    texts = {name: _text(fields, name, route) for name in ("model", "prompt", "response_format")}
    if not texts["model"]:
        raise InvalidRequest("model: send the name of a model of sounds", param="model")
    made = AudioForm(
        file=file,
        model=texts["model"],
        language=code_of(_text(fields, "language", route)) if "language" in rows else "",
        prompt=texts["prompt"],
        response_format=_format(texts["response_format"]),
        temperature=_temperature(_text(fields, "temperature", route, bounded=False), route),
        stream="stream" in rows and _flag(_text(fields, "stream", route, bounded=False)),
    )
    if _GRANULARITIES in rows:
        _check_granularities(fields.pop(f"{_GRANULARITIES}[]", None), made.response_format)
    refuse_unsupported(fields, _EXTRA)
    _check_stream(made)
    return made


def _fields(form: FormData) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in form.multi_items():
        if name in _LISTS:
            fields.setdefault(name, []).append(value)
        elif name in fields:
            raise InvalidRequest(f"{quoted(name)} is sent twice: send it once", param=name[:128])
        else:
            fields[name] = value
    return fields


def _text(fields: dict[str, Any], name: str, route: RequestRoute, *, bounded: bool = True) -> str:
    value = fields.pop(name, "")
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} is a file: send a text", param=name)
    if bounded:
        fields_of(route)[name].check_text(value)
    return value


def _format(given: str) -> str:
    if given and given not in FORMATS:
        raise UnsupportedParameter(
            f"response_format {quoted(given)} is not supported: send {', '.join(FORMATS)}",
            param="response_format",
        )
    return given or "json"


def _temperature(given: str, route: RequestRoute) -> float:
    if not given:
        return 0.0
    try:
        value: object = float(given[:32])
    except ValueError:
        value = given
    fields_of(route)["temperature"].read(value)
    assert isinstance(value, float)
    return value


def _flag(given: str) -> bool:
    if given not in ("", "true", "false"):
        raise InvalidRequest(f"stream is {quoted(given)}: send true or false", param="stream")
    return given == "true"


def _check_granularities(given: list[Any] | None, response_format: str) -> None:
    if given is None:
        return
    for each in given:
        if each == "word":
            raise UnsupportedParameter(
                "timestamp_granularities word is not supported: segments have times, send segment",
                param=_GRANULARITIES,
            )
        if each != "segment":
            raise InvalidRequest(
                f"timestamp_granularities {quoted(each)}: send segment", param=_GRANULARITIES
            )
    if response_format != "verbose_json":
        raise InvalidRequest(
            f"timestamp_granularities needs response_format verbose_json, not {response_format}",
            param=_GRANULARITIES,
        )


def _check_stream(form: AudioForm) -> None:
    if form.stream and form.response_format not in _STREAMED:
        raise UnsupportedParameter(
            f"stream sends text as it comes and response_format {form.response_format} has times: "
            "send json or text, or stream false",
            param="stream",
        )


def form_schema(route: RequestRoute) -> Schema:
    """Return the JSON Schema of the form."""
    rows = fields_of(route)
    properties: dict[str, Schema] = {
        "file": {"type": "string", "format": "binary"},
        "model": {"type": "string", "pattern": MODEL_NAME_PATTERN},
        "prompt": {"type": "string"},
        "response_format": {"enum": [*FORMATS]},
        "temperature": {"type": "number", "minimum": 0, "maximum": 1},
    }
    more: Mapping[str, Schema] = {
        "language": {"type": "string"},
        "stream": {"type": "boolean"},
        f"{_GRANULARITIES}[]": {"type": "array", "items": {"enum": ["segment"]}},
    }
    properties |= {key: each for key, each in more.items() if key.removesuffix("[]") in rows}
    return {
        "type": "object",
        "properties": properties,
        "required": ["file", "model"],
        "additionalProperties": False,
    }
