"""The one mapping from errors to HTTP replies, for each API family.

An error becomes a `Problem` (status, text, field), which is then written in the format of the
route's API family: Anthropic's error object under /v1/messages, OpenAI's elsewhere under /v1 and on
vLLM's own routes, Ollama's under /api, Saxml's formats elsewhere.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace

import msgspec
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from http_gateway.access import RequestRecord
from sax.errors import (
    LimitExceeded,
    ModelNotFound,
    PromptTooLong,
    QueueFull,
    SaxError,
    Unauthenticated,
    UnsupportedParameter,
    meaning,
)
from sax.format import LONGEST_QUOTE, count, shortened, without_long_words

# As vLLM has them.
_ALSO_OPENAI = frozenset(
    {
        *("/rerank", "/score", "/classify", "/pooling", "/tokenize", "/detokenize", "/infill"),
        *("/health", "/ping", "/version"),
    }
)
_MOST_TEXT = 4000  # characters of a message
_MOST_FIELDS = 10  # that it names
_RETRY_AFTER_S = 1.0  # for a 429 or 503 error that gives no delay of its own

# Codes that OpenAI clients know; other errors use their class name in snake case.
_OPENAI_CODES: dict[type[SaxError], str] = {
    UnsupportedParameter: "unsupported_parameter",
    PromptTooLong: "context_length_exceeded",
    ModelNotFound: "model_not_found",
    QueueFull: "rate_limit_exceeded",
    LimitExceeded: "rate_limit_exceeded",
    Unauthenticated: "invalid_api_key",
}

_HTTP_CODES = {
    404: "unknown_url",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "body_too_large",
    431: "headers_too_large",
    503: "too_many_connections",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field that failed validation."""

    loc: tuple[str | int, ...]
    text: str
    kind: str

    @property
    def path(self) -> str:
        """The field's path, e.g. messages[0].role."""
        parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.loc)
        return "".join(parts).removeprefix(".")


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as the caller sees it, before formatting for an API family."""

    status: int
    text: str
    code: str
    param: str | None = None
    retry_after_s: float | None = None
    fields: tuple[Field, ...] = ()
    allow: str | None = None  # methods of the path, of a 405

    @property
    def headers(self) -> dict[str, str]:
        if self.status == 401:
            return {"www-authenticate": 'Bearer realm="sax"'}
        if self.status == 405 and self.allow:
            return {"allow": self.allow}
        if self.status == 408:
            return {"connection": "close"}
        if self.retry_after_s is None:
            return {}
        return {"retry-after": str(max(1, math.ceil(self.retry_after_s)))}


def describe(error: Exception) -> Problem:
    """Convert any exception; one not meant for the caller becomes a plain 500.

    However an error quotes its input, the reply repeats little of it.
    """
    problem = _describe(error)
    return replace(
        problem,
        text=without_long_words(problem.text)[:_MOST_TEXT],
        param=problem.param and problem.param[:LONGEST_QUOTE],
    )


def _describe(error: Exception) -> Problem:
    if isinstance(error, SaxError):
        return _from_sax(error)
    if isinstance(error, ValidationError):
        return _from_validation(error)
    if isinstance(error, HTTPException):
        status, headers = error.status_code, error.headers or {}
        return Problem(status, str(error.detail), _http_code(status), allow=headers.get("Allow"))
    return Problem(500, "internal error: see the gateway's log", "internal")


def _from_sax(error: SaxError) -> Problem:
    line = meaning(error)
    patience = line.http in (429, 503)
    return Problem(
        status=line.http,
        text=error.text,
        code=_OPENAI_CODES.get(type(error)) or _snake(type(error).__name__),
        param=error.param,
        retry_after_s=(error.retry_after_s or _RETRY_AFTER_S) if patience else error.retry_after_s,
    )


def _from_validation(error: ValidationError) -> Problem:
    lines = error.errors(include_url=False, include_context=False, include_input=False)
    fields = tuple(
        Field(_short(line["loc"]), without_long_words(line["msg"])[:_MOST_TEXT], line["type"])
        for line in lines[:_MOST_FIELDS]
    )
    if fields[0].kind == "json_invalid":
        return Problem(400, f"the body is not JSON: {fields[0].text}", "invalid_json")
    text = "; ".join(
        f"{field.path}: {field.text}" if field.path else field.text for field in fields
    )
    if (more := len(lines) - len(fields)) > 0:
        text += f"; and {count(more, 'more fault')}"
    return Problem(422, text, "invalid_request", fields[0].path or None, fields=fields)


def _short(loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    return tuple(shortened(part) if isinstance(part, str) else part for part in loc)


def _http_code(status: int) -> str:
    return _HTTP_CODES.get(status, "http_error")


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def openai_error(problem: Problem) -> bytes:
    """Encode `{"error": {...}}`: a body, or the last event of a broken stream."""
    error = {
        "message": problem.text,
        "type": _openai_type(problem.status),
        "param": problem.param,
        "code": problem.code,
    }
    return msgspec.json.encode({"error": error})


def _openai_type(status: int) -> str:
    known = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    return known.get(status, "server_error" if status >= 500 else "invalid_request_error")


def openai_response(problem: Problem) -> Response:
    """Format for OpenAI, which has no 422: a field of the wrong type is a 400 there."""
    status = 400 if problem.status == 422 else problem.status
    body = openai_error(problem)
    return Response(body, status, problem.headers, media_type="application/json")


def anthropic_error(problem: Problem, request_id: str = "") -> bytes:
    """Encode `{"type": "error", ...}`: a body, or the last event of a broken stream.

    request_id: "" for that of the current request.
    """
    usual = "api_error" if problem.status >= 500 else "invalid_request_error"
    # Agents know by these words that they must shorten the conversation.
    too_long = "prompt is too long: " if problem.code == "context_length_exceeded" else ""
    error = {
        "type": _ANTHROPIC_TYPES.get(problem.status, usual),
        "message": too_long + problem.text,
        "details": {"error_code": problem.code},
    }
    told = request_id or RequestRecord.current().request_id
    return msgspec.json.encode({"type": "error", "error": error, "request_id": told})


def anthropic_response(problem: Problem, request_id: str = "") -> Response:
    """Format for Anthropic, which has no 422 either."""
    status = 400 if problem.status == 422 else problem.status
    told = request_id or RequestRecord.current().request_id
    headers = {**problem.headers, **({"request-id": told} if told else {})}
    return Response(anthropic_error(problem, told), status, headers, media_type="application/json")


def ollama_error(problem: Problem) -> bytes:
    """Encode `{"error": ...}`: a body, or the last line of a broken stream."""
    return msgspec.json.encode({"error": problem.text})


def ollama_response(problem: Problem) -> Response:
    """Format for Ollama, which has no 422 either."""
    status = 400 if problem.status == 422 else problem.status
    body = ollama_error(problem)
    return Response(body, status, problem.headers, media_type="application/json")


def saxml_response(problem: Problem, generation: int) -> Response:
    """Format for Saxml. Generation 1 uses 400 except for 401 and 403, which it did not have."""
    if generation == 1:
        return _generation_1(problem)
    detail = _details(problem) if problem.fields else problem.text
    body = json.dumps({"detail": detail}, ensure_ascii=False, separators=(",", ":")).encode()
    return Response(body, problem.status, problem.headers, media_type="application/json")


def _details(problem: Problem) -> list[dict[str, object]]:
    return [
        {"type": field.kind, "loc": ["body", *field.loc], "msg": field.text}
        for field in problem.fields
    ]


def _generation_1(problem: Problem) -> Response:
    if problem.code in ("unknown_url", "method_not_allowed"):
        body = {"message": "Invalid Request"}
    else:
        body = {"Error": problem.text}
    status = problem.status if problem.status in (401, 403) else 400
    return Response(json.dumps(body, indent=4) + "\n", status, problem.headers)


_OPERATORS = ("/cell/", "/mcp/")


def answer(path: str, error: Exception, generation: int, request_id: str = "") -> Response:
    """Format an error for the family of a path.

    request_id: for errors outside a request; "" for that of the current one.
    """
    problem = describe(error)
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return anthropic_response(problem, request_id)
    if path.startswith("/api/"):
        return ollama_response(problem)
    if path == "/v1" or path.startswith(("/v1/", "/v2/")) or path in _ALSO_OPENAI:
        return openai_response(problem)
    # Saxml had none of these, so that its first generation's format is not theirs.
    return saxml_response(problem, 2 if path.startswith(_OPERATORS) else generation)
