"""Questions over HTTP: every field of every route, several together, and every documented path."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, cast

from sax.fields.field import RequestField, RequestRoute
from sax.fields.sampling import SAMPLING
from sax.fields.table import fields_of
from tests.end_to_end.tool_template import ASKED, TOOLS, WEATHER
from tests.tools.answers.models import MODELS, picture, samples, wav
from tests.tools.answers.values import needs_of, values_of, wrong_of

R = RequestRoute
_SAID = [{"role": "user", "content": "What is the capital of France?"}]
_TEXT = "The capital of France is"
_SEEDED = {"seed": 7, "max_tokens": 4}
_NOBODY = "/sax/test/nobody"
_TINY, _DEMO = {"model": "seeing"}, {"model": "smollm2"}  # in moments, and in words
_FULL = "/sax/test/smollm2"
_INPUTS = {"seed": 7, "per_example_max_decode_steps": 4}
_SPEC = {"model": _NOBODY, "model_path": "llama", "checkpoint": "None", "replicas": 0}
BASES: dict[RequestRoute, dict[str, Any]] = {
    R.CHAT: {**_TINY, "messages": _SAID, **_SEEDED},
    R.COMPLETIONS: {"model": "smollm2", "prompt": _TEXT, **_SEEDED},
    R.RESPONSES: {**_TINY, "input": "Hi", "seed": 7, "max_output_tokens": 4},
    R.CONVERSATIONS: {"items": [{"role": "user", "content": "Hi"}]},
    R.MESSAGES: {**_TINY, "messages": _SAID, "max_tokens": 4, "top_k": 1},
    R.COUNT_TOKENS: {**_TINY, "messages": _SAID},
    R.OLLAMA_CHAT: {**_TINY, "messages": _SAID, "stream": False},
    R.OLLAMA_GENERATE: {**_TINY, "prompt": "Hi", "stream": False},
    R.OLLAMA_EMBED: {"model": "embedder", "input": "Hi"},
    R.OLLAMA_EMBEDDINGS: {"model": "embedder", "prompt": "Hi"},
    R.OLLAMA_SHOW: {"model": "smollm2"},
    R.EMBEDDINGS: {"model": "passes", "input": ["a b", "c"]},
    R.RERANK: {"model": "embedder", "query": "Hi", "documents": ["Hello", "trees"]},
    R.SCORE: {"model": "embedder", "text_1": "Hi", "text_2": ["Hello", "trees"]},
    R.CLASSIFY: {"model": "classifier", "input": ["Hi", "you"]},
    R.TRANSCRIPTIONS: {"model": "ear", "language": "de"},
    R.TRANSLATIONS: {"model": "ear"},
    R.TEXT_TO_TOKENS: {"model": "smollm2", "messages": _SAID},
    R.TOKENS_TO_TEXT: {"model": "smollm2", "tokens": [253, 260]},
    R.INFILL: {**_TINY, "input_prefix": "Hi", "input_suffix": "you", "n_predict": 4},
    R.GENERATE: {"model": _FULL, "query": "Hi", "extra_inputs": _INPUTS},
    R.LISTCELL: {"model": _FULL},
    R.LISTALL: {"sax_cell": "/sax/test"},
    # Of a model that nobody published: each is refused, whatever else it holds.
    R.UPDATE: _SPEC,
    R.CANARY: {"model": _NOBODY, "percent": 10},
    **{each: {"model": _NOBODY} for each in (R.PROMOTE, R.ABORT, R.ROLLBACK, R.UNPUBLISH)},
    R.BATCHES: {
        **{"input_file_id": "file-1", "endpoint": "/v1/completions"},
        "completion_window": "24h",
    },
}
_OLLAMA = (R.OLLAMA_CHAT, R.OLLAMA_GENERATE)
_SOUNDS = (R.TRANSCRIPTIONS, R.TRANSLATIONS)
_CHANGES = (R.UPDATE, R.CANARY, R.PROMOTE, R.ABORT, R.ROLLBACK, R.UNPUBLISH)
_OPTIONS = {"seed": 7, "num_predict": 4}


@dataclass(frozen=True, slots=True)
class Question:
    """One request; `sent` are httpx's arguments for what it holds."""

    name: str
    method: str
    path: str
    sent: Mapping[str, Any]


def questions(document: Mapping[str, Any]) -> Iterator[Question]:
    """Yield every question; `document` is the gateway's /openapi.json."""
    for route in BASES:
        yield from _of_route(route)
    for route, name, changes in _further():
        body = BASES[route] | (_DEMO if BASES[route].get("model") == "seeing" else {}) | changes
        yield _asked(f"{route} {name}", route, body)
        if "stream" in fields_of(route):
            yield _asked(f"{route} {name}, streamed", route, body | {"stream": True})
    yield from _of_paths(document)


def _of_route(route: RequestRoute) -> Iterator[Question]:
    base, fields = BASES[route], fields_of(route)
    yield _asked(f"{route} plain", route, base)
    for field in fields.values():
        good = values_of(field, sounds=route in _SOUNDS)
        if route in _CHANGES and field.name == "model":
            good = []
        needed = base | needs_of(route, field.name)
        for value in good:
            yield _asked(_name(route, field, value), route, _with(needed, field.name, value))
        if good and field.name in SAMPLING and "stream" in fields:
            body = _with(needed, field.name, good[len(good) // 2]) | {"stream": True}
            yield _asked(f"{_name(route, field, '')} streamed", route, body)
        for value in wrong_of(field):
            yield _asked(_name(route, field, value), route, _with(base, field.name, value))
    yield _asked(f"{route} no_such_field=1", route, base | {"no_such_field": 1})


def _with(body: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Return the body with one more field; `messages.role` is the role of its first message."""
    outer, _, inner = name.partition(".")
    if not inner:
        return body | {name: value}
    if isinstance(body.get(outer), list):
        first, *rest = body[outer]
        return body | {outer: [{**first, inner: value}, *rest]}
    return body | {outer: {inner: value}}


def _asked(name: str, route: RequestRoute, body: dict[str, Any]) -> Question:
    if route in _OLLAMA:
        body = body | {"options": _options(body.get("options", {}))}
    sent = _form(body) if route in _SOUNDS else {"json": body}
    return Question(name, "PUT" if route is R.UPDATE else "POST", str(route), sent)


def _options(given: Any) -> Any:
    return _OPTIONS | given if isinstance(given, dict) else given


def _form(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a form with a sound in it, or what stands in its place."""
    said = body.get("file", wav())
    data = {
        f"{key}[]" if isinstance(value, list) else key: _word(value)
        for key, value in body.items()
        if key != "file"
    }
    file = said if isinstance(said, bytes) else str(said).encode()
    return {"data": data, "files": {"file": ("said.wav", file)}}


def _word(value: Any) -> str | list[str]:
    """Return a value as forms and query strings have it."""
    if isinstance(value, list):
        return [str(each) for each in cast("list[Any]", value)]
    return value if isinstance(value, str) else json.dumps(value)


def _name(route: RequestRoute, field: RequestField, value: Any) -> str:
    told = json.dumps(value, sort_keys=True)
    if len(told) > 60:
        told = f"{told[:50]}... {sha256(told.encode()).hexdigest()[:6]}"
    return f"{route} {field.name}={told}"


def _further() -> list[tuple[RequestRoute, str, dict[str, Any]]]:
    """Return changes of the plain requests: what takes several fields, or another model."""
    png = base64.b64encode(picture()).decode()
    sound = {"data": base64.b64encode(wav(samples())).decode(), "format": "wav"}
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png}"}}
    source = {"type": "base64", "media_type": "image/png", "data": png}
    see = _by_user({"type": "text", "text": "See"}, image)
    block = _by_user({"type": "image", "source": source})
    hear = _by_user({"type": "input_audio", "input_audio": sound})
    calls = {"messages": ASKED, "tools": TOOLS, "max_tokens": 60, "temperature": 0}
    named = {"type": "function", "function": {"name": "get_weather"}}
    functions = [{"type": "function", **each["function"]} for each in TOOLS]
    tools = [{"name": "get_weather", "input_schema": WEATHER}]
    call = {"id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    turns = [
        *(ASKED[0], {"role": "assistant", "content": None, "tool_calls": [call]}),
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
    ]
    scores = {"logprobs": True, "top_logprobs": 2}
    return [
        (R.CHAT, "a required call", calls | {"tool_choice": "required"}),
        (R.CHAT, "a named call", calls | {"tool_choice": named, "parallel_tool_calls": False}),
        (R.CHAT, "a call's result", calls | {"messages": turns, "max_tokens": 6}),
        (R.CHAT, "scores of a call", calls | scores | {"tool_choice": "required"}),
        (R.CHAT, "scores", scores),
        (R.CHAT, "reasoning", {"chat_template_kwargs": {"enable_thinking": True}}),
        (R.CHAT, "several answers", {"n": 3, "temperature": 1.5, **scores}),
        (R.CHAT, "token ids", {"return_token_ids": True, "prompt_logprobs": 1}),
        (R.CHAT, "an image", {"model": "seeing", "messages": see}),
        (R.CHAT, "an image for a model of texts", {"messages": see}),
        (R.CHAT, "a sound", {"model": "hearing", "messages": hear}),
        *((R.CHAT, f"of {each}", {"model": each}) for each in MODELS),
        (R.COMPLETIONS, "of an adapter", {"model": "adapted", "max_tokens": 12}),
        (R.COMPLETIONS, "echo and scores", {"echo": True, "logprobs": 2}),
        (R.COMPLETIONS, "only scores", {"echo": True, "logprobs": 1, "max_tokens": 0}),
        (R.COMPLETIONS, "prompt scores", {"prompt_logprobs": 2, "return_token_ids": True}),
        (R.COMPLETIONS, "beams", {"use_beam_search": True, "n": 4, "max_tokens": 8}),
        (R.COMPLETIONS, "prompts", {"prompt": [_TEXT, "Two"], "n": 2, "best_of": 2}),
        (R.COMPLETIONS, "prompts of ids", {"prompt": [[253, 260], [28]]}),
        (R.COMPLETIONS, "a stop kept", {"stop": ["a"], "include_stop_str_in_output": True}),
        (R.COMPLETIONS, "many tokens", {"max_tokens": 40, "temperature": 0.8, "top_p": 0.9}),
        (R.COMPLETIONS, "too long", {"prompt": "a b " * 300}),
        (R.RESPONSES, "a call", {"input": ASKED, "tools": functions, "tool_choice": "required"}),
        (R.RESPONSES, "instructed", {"instructions": "Be brief.", "top_logprobs": 1}),
        (R.MESSAGES, "a call", {"tools": tools, "tool_choice": {"type": "any"}, "max_tokens": 60}),
        (R.MESSAGES, "an image", {"model": "seeing", "messages": block}),
        (R.MESSAGES, "instructed", {"system": "Be brief.", "stop_sequences": ["e"]}),
        (R.OLLAMA_CHAT, "tools", {"tools": TOOLS, "options": {"temperature": 0}}),
        (R.OLLAMA_GENERATE, "an image", {"model": "seeing", "images": [png]}),
        (R.OLLAMA_GENERATE, "nothing", {"prompt": ""}),
        (R.OLLAMA_GENERATE, "raw", {"raw": True, "prompt": _TEXT}),
        (R.EMBEDDINGS, "of a language model", {"model": "smollm2"}),
        (R.EMBEDDINGS, "of an embedder", {"model": "embedder", "input": ["Hi", "trees"]}),
        (R.SCORE, "pairs", {"text_1": ["a", "b"], "text_2": ["c", "d"]}),
        (R.SCORE, "pairs that do not match", {"text_1": ["a", "b"], "text_2": ["c"]}),
        (R.CLASSIFY, "without classes", {"model": "passes"}),
        (R.TEXT_TO_TOKENS, "a text", {"messages": None, "prompt": _TEXT}),
        (R.TOKENS_TO_TEXT, "out of range", {"tokens": [1 << 20]}),
        (R.TRANSCRIPTIONS, "no sound", {"file": b"hello"}),
        (R.TRANSCRIPTIONS, "a stream", {"stream": True}),
        (R.GENERATE, "of a custom model", {"model": "/sax/test/flowers"}),
        (R.GENERATE, "an unknown input", {"extra_inputs": {"heat": 1}}),
    ]


def _by_user(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts]}]


def _of_paths(document: Mapping[str, Any]) -> Iterator[Question]:
    """Yield what every documented path is asked: as documented, without a body, and wrongly."""
    paths = [(path, each) for path, each in document["paths"].items()]
    for path, operations in [*paths, ("/no/such/path", {"get": {}})]:
        place = path.replace("{name}", "smollm2").replace("{", "").replace("}", "")
        for method in (each.upper() for each in operations):
            if method == "GET":
                yield Question(f"GET {path}", "GET", place, {})
                yield Question(f"HEAD {path}", "HEAD", place, {})
            else:
                yield Question(f"{method} {path} with {{}}", method, place, {"json": {}})
                broken = {"content": b"{"}
                yield Question(f"{method} {path} with half a body", method, place, broken)
        yield Question(f"PATCH {path}", "PATCH", place, {})
    for name, headers in (
        ("as a browser", {"accept": "text/html"}),
        ("from a foreign page", {"origin": "http://other.example"}),
        ("of a foreign host", {"host": "other.example"}),
        ("in no time", {"x-request-timeout": "never"}),
        ("in a session", {"x-session-id": "s" * 513}),
    ):
        yield Question(f"GET / {name}", "GET", "/", {"headers": headers})
        sent = {"headers": headers, "json": BASES[R.CHAT]}
        yield Question(f"{R.CHAT} {name}", "POST", str(R.CHAT), sent)
    for route in (R.EVENTS, R.LISTCELL):
        for field in fields_of(route).values():
            for value in (*values_of(field), *wrong_of(field)):
                query = {"params": {field.name: _word(value)}}
                yield Question(f"GET {_name(route, field, value)}", "GET", str(route), query)
