"""Requests to rank documents, score pairs and classify texts, and the treatment of each field.

Ranking is as at Jina and Cohere; scores and classes are as at vLLM.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict

from http_gateway.bounds import WHOLE, bounded, ranged, sized
from http_gateway.openai.prompts import prompts_schema, texts_schema
from http_gateway.openai.schema import Prompt, read_prompts, refuse_unsupported
from http_gateway.openapi import RequestBody, Schema
from sax.errors import InvalidRequest
from sax.fields.field import RequestRoute
from sax.fields.table import field

_HARMLESS = frozenset({"user", "metadata", "safety_identifier"})
# Field -> the values besides null that change nothing. Any other value is refused.
_EXTRA: dict[str, tuple[object, ...]] = {
    "truncate_prompt_tokens": (),
    "max_tokens_per_doc": (),
    "max_chunks_per_doc": (),
    "rank_fields": (),
    "add_special_tokens": (True,),
    "activation": (),
    "use_activation": (True,),
    "softmax": (),
    "priority": (0,),
    "encoding_format": ("float",),
}


def _read_documents(value: object) -> object:
    """Normalise texts, and objects with one field `text`, to texts. Raises ValueError."""
    if not isinstance(value, list):
        raise ValueError("send a list of texts")
    row, texts = field(RequestRoute.RERANK, "documents"), list[str]()
    row.check_count(len(cast("list[object]", value)))
    for each in cast("list[object]", value):
        text: Any = each
        if isinstance(each, dict):
            whole = cast("dict[str, object]", each)
            text = whole.get("text") if len(whole) == 1 else None
        if not isinstance(text, str):
            raise ValueError("send texts, or objects with one field, text")
        row.check_text(text)
        texts.append(text)
    return texts


def _read_texts(name: str) -> Callable[[object], object]:
    """Return a reader of one text or a list of them. It raises ValueError."""
    row = field(RequestRoute.SCORE, name)

    def read(value: object) -> object:
        row.check(value)
        return [value] if isinstance(value, str) else value

    return read


class _Request(BaseModel):
    """Fields of all three. null always means the default."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    model: Annotated[str, bounded(RequestRoute.RERANK, "model")]
    timeout: Annotated[float, ranged(RequestRoute.RERANK, "timeout")] | None = None

    def check(self) -> None:
        """Raise UnsupportedParameter for a field that cannot be honoured."""
        refuse_unsupported(self.model_extra, _EXTRA, _HARMLESS)


class RerankRequest(_Request):
    """POST /v1/rerank."""

    query: Annotated[str, bounded(RequestRoute.RERANK, "query")]
    documents: Annotated[
        list[str],
        sized(RequestRoute.RERANK, "documents", least=1),
        BeforeValidator(_read_documents),
    ]
    top_n: Annotated[int, ranged(RequestRoute.RERANK, "top_n"), WHOLE] | None = None
    return_documents: bool | None = None


class ScoreRequest(_Request):
    """POST /v1/score."""

    text_1: Annotated[
        list[str],
        sized(RequestRoute.SCORE, "text_1", least=1),
        BeforeValidator(_read_texts("text_1")),
    ]
    text_2: Annotated[
        list[str],
        sized(RequestRoute.SCORE, "text_2", least=1),
        BeforeValidator(_read_texts("text_2")),
    ]

    def check(self) -> None:
        """Raise UnsupportedParameter, or InvalidRequest for texts that make no pairs."""
        super().check()
        if len(self.text_1) not in (1, len(self.text_2)):
            raise InvalidRequest(
                f"text_1 has {len(self.text_1)} texts and text_2 has {len(self.text_2)}: send one "
                "text_1, or as many as there are of text_2",
                param="text_1",
            )


class ClassifyRequest(_Request):
    """POST /v1/classify."""

    input: Annotated[
        list[str | list[int]],
        BeforeValidator(read_prompts),
        sized(RequestRoute.CLASSIFY, "input", least=1),
        bounded(RequestRoute.CLASSIFY, "input"),
    ]

    def inputs(self) -> list[Prompt]:
        return [each if isinstance(each, str) else tuple(each) for each in self.input]


def _body(
    model: type[BaseModel], route: RequestRoute, replaced: dict[str, Schema], *rules: Schema
) -> RequestBody:
    return RequestBody(
        model=model,
        route=route,
        unchanged=_EXTRA,
        labels=_HARMLESS,
        replaced=replaced,
        rules=rules,
    )


def _documents() -> Schema:
    row = field(RequestRoute.RERANK, "documents")
    text: Schema = {"type": "string", "maxLength": row.bytes}
    whole: Schema = {
        "type": "object",
        "properties": {"text": text},
        "required": ["text"],
        "additionalProperties": False,
    }
    entry: Schema = {"anyOf": [text, whole]}
    return {"type": "array", "items": entry, "minItems": 1, "maxItems": row.count}


RERANK = _body(RerankRequest, RequestRoute.RERANK, {"documents": _documents()})
SCORE = _body(
    ScoreRequest,
    RequestRoute.SCORE,
    {name: texts_schema(RequestRoute.SCORE, name, least=0) for name in ("text_1", "text_2")},
)
CLASSIFY = _body(
    ClassifyRequest,
    RequestRoute.CLASSIFY,
    {"input": prompts_schema(RequestRoute.CLASSIFY, "input")},
)
