"""Random requests of every kind, made from the table of fields: new fields take part by themselves.

Values lie within the bounds of the table, so a request is refused only where fields contradict each
other or name what is not there.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from sax.fields.field import Kind, RequestField, RequestRoute
from sax.fields.table import fields_of
from tests.end_to_end.cell import SMOLLM2

EMBEDDER, ADAPTED = "/sax/test/minilm", "/sax/test/adapted"
ROUTES = (
    RequestRoute.CHAT,
    RequestRoute.COMPLETIONS,
    RequestRoute.EMBEDDINGS,
    RequestRoute.GENERATE,
)
SHARE = 0.06  # of requests that have a field which need not be there
CONSTRAINED = 0.15  # of generating requests
_WORDS = (
    *("the", "sea", "and", "a", "small", "red", "house", "stood", "near", "old"),
    *("trees", "while", "rain", "fell", "on", "tin", "roofs"),
)
CONSTRAINTS: tuple[dict[str, Any], ...] = (
    {"response_format": {"type": "json_object"}},
    {
        "guided_json": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name", "age"],
        }
    },
    {"guided_regex": "[a-z]{3,9} (is|was) [0-9]+"},
    {"structured_outputs": {"choice": ["the sea", "a small house", "old trees"]}},
    {"guided_grammar": 'root ::= "(" ("a" | root)* ")"'},
)
# Smaller than the table's bounds, so that a soak makes many requests instead of a few long ones.
_LEAST_OF_ALL = {"timeout": 0.05}
_MOST = {
    "n": 3,
    "max_tokens": 40,
    "max_completion_tokens": 40,
    "min_tokens": 8,
    "timeout": 30.0,
    "temperature": 2.0,
    "dimensions": 384,
}
# Fields that say who asks or which model answers, and one that OpenAI's routes do not have at all.
_SET_BY_BASE = {"model", "messages", "prompt", "input", "query", "stream"}
# Those that go with a beam search.
_OF_BEAMS = {
    *("model", "messages", "prompt", "max_tokens", "max_completion_tokens", "min_tokens", "n"),
    *("best_of", "use_beam_search", "length_penalty", "early_stopping", "stop_token_ids"),
    *("timeout", "priority", "user", "seed", "cache_salt", "return_token_ids"),
}


@dataclass(frozen=True, slots=True)
class RandomRequest:
    """One request over HTTP, and after how many seconds its caller goes away, if it does."""

    route: RequestRoute
    body: dict[str, Any]
    leaves_after_s: float | None

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))


def random_request(draw: random.Random) -> RandomRequest:
    route = draw.choices(ROUTES, (4, 4, 1, 1))[0]
    body = _base(draw, route)
    for field in fields_of(route).values():
        if field.name not in _SET_BY_BASE and "." not in field.name and draw.random() < SHARE:
            body[field.name] = value_of(draw, field)
    if route in (RequestRoute.CHAT, RequestRoute.COMPLETIONS) and draw.random() < CONSTRAINED:
        body |= draw.choice(CONSTRAINTS)
    _reconcile(draw, body)
    leaves = draw.uniform(0.0, 2.0) if draw.random() < 0.1 else None
    return RandomRequest(route, body, leaves)


def text(draw: random.Random, most_words: int) -> str:
    return " ".join(draw.choices(_WORDS, k=draw.randint(1, most_words)))


def value_of(draw: random.Random, field: RequestField) -> Any:
    """Return a value within the bounds of a field."""
    count = draw.randint(0, min(field.count or 1, 4))
    match field.kind:
        case Kind.TEXT:
            return text(draw, 2)
        case Kind.FLAG:
            return draw.random() < 0.5
        case Kind.INTEGER:
            return draw.randint(int(_least(field)), int(_most(field)))
        case Kind.NUMBER:
            return round(draw.uniform(_least(field), _most(field)), 3)
        case Kind.IDS:
            return [draw.randint(0, 40_000) for _ in range(count)]
        case Kind.TEXTS | Kind.PROMPTS:
            return [text(draw, 2) for _ in range(count)]
        case Kind.BIASES:
            return {str(draw.randint(0, 40_000)): draw.randint(-100, 100) for _ in range(count)}
        case Kind.MAP:
            return {}
        case Kind.OBJECTS:
            return []
        case Kind.MESSAGES:
            return [{"role": "user", "content": text(draw, 20)}]


def _least(field: RequestField) -> float:
    least = field.least if field.least is not None else field.above
    return max(least if least is not None else -100.0, _LEAST_OF_ALL.get(field.name, -1e9))


def _most(field: RequestField) -> float:
    most = field.most if field.most is not None else 100.0
    return min(most, _MOST.get(field.name, 2**31 - 1))


def _base(draw: random.Random, route: RequestRoute) -> dict[str, Any]:
    words = draw.choice((5, 30, 400))
    match route:
        case RequestRoute.CHAT:
            said = [{"role": "user", "content": text(draw, words)}]
            return {"model": _model(draw), "messages": said, "max_tokens": 20, **_stream(draw)}
        case RequestRoute.COMPLETIONS:
            many = [text(draw, words) for _ in range(draw.randint(1, 3))]
            return {"model": _model(draw), "prompt": many, "max_tokens": 20, **_stream(draw)}
        case RequestRoute.EMBEDDINGS:
            return {"model": EMBEDDER, "input": [text(draw, 60) for _ in range(draw.randint(1, 8))]}
        case _:
            return {"model": SMOLLM2, "query": text(draw, words)}


def _model(draw: random.Random) -> str:
    return draw.choice((SMOLLM2, SMOLLM2, ADAPTED))


def _stream(draw: random.Random) -> dict[str, Any]:
    return {"stream": draw.random() < 0.5}


def _reconcile(draw: random.Random, body: dict[str, Any]) -> None:
    """Set what other fields need, in most requests: the rest are refused."""
    if draw.random() < 0.1:
        return
    if "max_completion_tokens" in body:
        body.pop("max_tokens", None)
    if "thinking_token_budget" in body:
        body.pop("max_thinking_tokens", None)
    if "top_logprobs" in body:
        body["logprobs"] = True
    if "best_of" in body:
        body["best_of"] = body.get("n", 1)
    if body.get("use_beam_search"):
        for name in body.keys() - _OF_BEAMS:
            del body[name]
    else:
        body.pop("length_penalty", None)
        body.pop("early_stopping", None)
    if not body.get("stream"):
        body.pop("stream_options", None)
    if body.get("continue_final_message"):
        body["add_generation_prompt"] = False
    body.pop("tool_choice", None)  # of no function
    body.pop("reasoning_effort", None)  # two words
    body.pop("dimensions", None)  # of a model whose vectors have another size
    body.pop("encoding_format", None)  # of two words
