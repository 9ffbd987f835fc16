"""/v1/rerank as at Jina and Cohere, /v1/score and /v1/classify as at vLLM.

Entities are as in transformers' pipeline "token-classification".
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict
from starlette.responses import Response

from http_gateway.backend import Backend
from http_gateway.body import read_body
from http_gateway.bounds import WHOLE, bounded, ranged, sized
from http_gateway.openai.completions import read_prompts
from http_gateway.openai.passes.inputs import (
    Entry,
    entries_of,
    entries_schema,
    entry_schemas,
    inputs_of,
    inputs_schema,
    read_entry,
    with_linked_images,
)
from http_gateway.openai.prompts import prompts_schema
from http_gateway.openai.reply import InputUsage, ListHead
from http_gateway.openai.unsupported import refuse_unsupported
from http_gateway.openapi import WITH_MODEL, OpenAiError, RequestBody, Schema, operation
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.passes import Aggregation, ChatInput, Classified, Entity, PairScores, entities_of, ranked


class ScoreEntry(TypedDict):
    object: Literal["score"]
    index: int
    score: float


class ScoreList(ListHead):
    data: list[ScoreEntry]


class FoundEntity(TypedDict):
    """A part of a text with a label, as transformers' pipeline "token-classification" has it."""

    entity: NotRequired[str]  # of one token: aggregation_strategy is none
    entity_group: NotRequired[str]  # of several
    score: float
    index: NotRequired[int]  # of one token, among those of its text
    word: str  # the text from start to end
    start: int  # characters
    end: int


class ClassEntry(TypedDict):
    """The likeliest label of one input, and the score of each label; or what a classifier of tokens
    finds in it.
    """

    index: int
    label: NotRequired[str]
    probs: NotRequired[list[float]]
    num_classes: NotRequired[int]
    entities: NotRequired[list[FoundEntity]]


class ClassList(ListHead):
    data: list[ClassEntry]


class RankedText(TypedDict):
    text: str


class RankedEntry(TypedDict):
    index: int
    document: NotRequired[RankedText]
    relevance_score: float


class RankedList(TypedDict):
    """Documents, best first."""

    id: str
    model: str
    results: list[RankedEntry]
    usage: InputUsage


# Requests to rank documents, score pairs and classify texts, and the treatment of each field.
#
# Ranking is as at Jina and Cohere; scores and classes are as at vLLM.

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


def _read_query(value: object) -> Entry:
    return read_entry(value, "query", field(RequestRoute.RERANK, "query"))


class _Request(BaseModel):
    """Fields of all three. null always means the default."""

    model_config = ConfigDict(defer_build=True, extra="allow", strict=True, frozen=True)

    model: Annotated[str, bounded(RequestRoute.RERANK, "model")]
    timeout: Annotated[float, ranged(RequestRoute.RERANK, "timeout")] | None = None

    def check(self) -> None:
        """Raise UnsupportedParameter for a field that cannot be honoured."""
        refuse_unsupported(self.model_extra, _EXTRA, _HARMLESS)


class RerankRequest(_Request):
    """POST /v1/rerank."""

    query: Annotated[Any, BeforeValidator(_read_query)]
    documents: Annotated[
        list[Any],
        sized(RequestRoute.RERANK, "documents", least=1),
        BeforeValidator(entries_of(RequestRoute.RERANK, "documents")),
    ]
    top_n: Annotated[int, ranged(RequestRoute.RERANK, "top_n"), WHOLE] | None = None
    return_documents: bool | None = None

    def check(self) -> None:
        """Raise UnsupportedParameter for a field that cannot be honoured."""
        super().check()
        if self.return_documents and any(isinstance(each, ChatInput) for each in self.documents):
            raise UnsupportedParameter(
                "return_documents is for texts: images are not sent back; leave it out, results "
                "have the places of documents",
                param="return_documents",
            )


class ScoreRequest(_Request):
    """POST /v1/score."""

    text_1: Annotated[
        list[Any],
        sized(RequestRoute.SCORE, "text_1", least=1),
        BeforeValidator(entries_of(RequestRoute.SCORE, "text_1")),
    ]
    text_2: Annotated[
        list[Any],
        sized(RequestRoute.SCORE, "text_2", least=1),
        BeforeValidator(entries_of(RequestRoute.SCORE, "text_2")),
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
        list[Any],
        sized(RequestRoute.CLASSIFY, "input", least=1),
        BeforeValidator(inputs_of(RequestRoute.CLASSIFY, read_prompts)),
    ]
    # Texts or images to choose from for each input, of models such as CLIP
    candidates: (
        Annotated[
            list[Any],
            sized(RequestRoute.CLASSIFY, "candidates", least=1),
            BeforeValidator(entries_of(RequestRoute.CLASSIFY, "candidates")),
        ]
        | None
    ) = None

    # Of a classifier of tokens, as in transformers' pipeline; null: none
    aggregation_strategy: (
        Annotated[Aggregation, bounded(RequestRoute.CLASSIFY, "aggregation_strategy")] | None
    ) = None
    # Labels of tokens that are left out; null: O
    ignore_labels: Annotated[list[str], bounded(RequestRoute.CLASSIFY, "ignore_labels")] | None = (
        None
    )


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


def _query() -> Schema:
    return {"anyOf": entry_schemas(field(RequestRoute.RERANK, "query"))}


RERANK = _body(
    RerankRequest,
    RequestRoute.RERANK,
    {"query": _query(), "documents": entries_schema(RequestRoute.RERANK, "documents")},
)
SCORE = _body(
    ScoreRequest,
    RequestRoute.SCORE,
    {name: entries_schema(RequestRoute.SCORE, name) for name in ("text_1", "text_2")},
)
CLASSIFY = _body(
    ClassifyRequest,
    RequestRoute.CLASSIFY,
    {
        "input": inputs_schema(
            RequestRoute.CLASSIFY, prompts_schema(RequestRoute.CLASSIFY, "input")
        ),
        "candidates": {
            "anyOf": [
                *entries_schema(RequestRoute.CLASSIFY, "candidates")["anyOf"],
                {"type": "null"},
            ]
        },
    },
)

# The same routes as other servers and clients spell them.
RERANK_PATHS = (RequestRoute.RERANK.value, "/rerank", "/v2/rerank")
SCORE_PATHS = (RequestRoute.SCORE.value, "/score")
CLASSIFY_PATHS = (RequestRoute.CLASSIFY.value, "/classify")


_told = partial(operation, errors=OpenAiError, statuses=WITH_MODEL)
_RERANK = _told(RankedList, body=RERANK)
_SCORE = _told(ScoreList, body=SCORE)
_CLASSIFY = _told(ClassList, body=CLASSIFY)


class RelevanceRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def router(self) -> APIRouter:
        router = APIRouter(tags=["relevance"])
        for paths, handler, told in (
            (RERANK_PATHS, self.rerank, _RERANK),
            (SCORE_PATHS, self.score, _SCORE),
            (CLASSIFY_PATHS, self.classify, _CLASSIFY),
        ):
            for path in paths:
                router.add_api_route(path, handler, methods=["POST"], **told)
        return router

    async def rerank(self, request: Request) -> Response:
        """Rank documents by how well they go with a query, best first."""
        body = RerankRequest.model_validate_json(await read_body(request, RequestRoute.RERANK))
        body.check()
        found = await self._pairs(request, body, [body.query], body.documents)
        reply: RankedList = {
            "id": _id("rerank"),
            "model": body.model,
            "results": _results(body, found.scores),
            "usage": _usage(found.prompt_tokens),
        }
        return _json(reply)

    async def score(self, request: Request) -> Response:
        """Score how well the texts of each pair go together."""
        body = ScoreRequest.model_validate_json(await read_body(request, RequestRoute.SCORE))
        body.check()
        found = await self._pairs(request, body, body.text_1, body.text_2)
        reply: ScoreList = {
            "id": _id("score"),
            "object": "list",
            "created": int(time.time()),
            "model": body.model,
            "data": [
                {"index": index, "object": "score", "score": score}
                for index, score in enumerate(found.scores)
            ],
            "usage": _usage(found.prompt_tokens),
        }
        return _json(reply)

    async def classify(self, request: Request) -> Response:
        """Give texts a score per label of a classifier, or find entities in them."""
        body = ClassifyRequest.model_validate_json(await read_body(request, RequestRoute.CLASSIFY))
        body.check()
        backend = self._backend
        model_id = await backend.catalog.resolve(body.model)
        limit_s = backend.limit_s(request, body.timeout)
        offered = body.candidates or []
        linked = await with_linked_images(backend, [*body.input, *offered], "input")
        work = backend.client.classify(
            model_id,
            linked[: len(body.input)],
            limit_s,
            takes_tokens=True,
            candidates=linked[len(body.input) :],
        )
        found = await backend.run(request, work)
        backend.count(found.prompt_tokens)
        reply: ClassList = {
            "id": _id("classify"),
            "object": "list",
            "created": int(time.time()),
            "model": body.model,
            "data": _classes(body, found) if found.scores else _entities(body, found),
            "usage": _usage(found.prompt_tokens),
        }
        return _json(reply)

    async def _pairs(
        self,
        request: Request,
        body: RerankRequest | ScoreRequest,
        first: list[Entry],
        second: list[Entry],
    ) -> PairScores:
        backend = self._backend
        model_id = await backend.catalog.resolve(body.model)
        limit_s = backend.limit_s(request, body.timeout)
        linked = await with_linked_images(backend, [*first, *second], "documents")
        work = backend.client.score_pairs(
            model_id, linked[: len(first)], linked[len(first) :], limit_s
        )
        found = await backend.run(request, work)
        backend.count(found.prompt_tokens)
        return found


def _results(body: RerankRequest, scores: Sequence[float]) -> list[RankedEntry]:
    best = ranked(scores, body.top_n)
    if not body.return_documents:
        return [{"index": each.index, "relevance_score": each.relevance_score} for each in best]
    return [
        {
            "index": each.index,
            "document": {"text": body.documents[each.index]},
            "relevance_score": each.relevance_score,
        }
        for each in best
    ]


def _classes(body: ClassifyRequest, found: Classified) -> list[ClassEntry]:
    """Raises UnsupportedParameter for fields of classifiers of tokens."""
    for name in ("aggregation_strategy", "ignore_labels"):
        if getattr(body, name) is not None:
            raise UnsupportedParameter(
                f"{name} is for classifiers of tokens, and {body.model} classifies whole inputs: "
                "leave it out",
                param=name,
            )
    return [
        {
            "index": index,
            "label": found.labels[max(range(len(scores)), key=scores.__getitem__)],
            "probs": scores,
            "num_classes": len(scores),
        }
        for index, scores in enumerate(found.scores)
    ]


def _entities(body: ClassifyRequest, found: Classified) -> list[ClassEntry]:
    """Raises InvalidRequest for token ids, which have no places in a text."""
    ignored = ["O"] if body.ignore_labels is None else body.ignore_labels
    entries: list[ClassEntry] = []
    for index, (text, tokens) in enumerate(zip(body.input, found.tokens, strict=True)):
        if not isinstance(text, str):
            raise InvalidRequest(
                "a classifier of tokens finds places in texts: send texts, or token ids to "
                "/pooling with task token_classify",
                param="input",
            )
        strategy = body.aggregation_strategy or "none"
        each = entities_of(tokens, text, found.labels, strategy, ignored)
        entries.append({"index": index, "entities": [_entity(one) for one in each]})
    return entries


def _entity(found: Entity) -> FoundEntity:
    place: FoundEntity = {
        "score": found.score,
        "word": found.word,
        "start": found.start,
        "end": found.end,
    }
    if found.index is None:
        return {"entity_group": found.label, **place}
    return {"entity": found.label, "index": found.index, **place}


def _usage(prompt_tokens: int) -> InputUsage:
    return {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}


def _id(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex}"


def _json(reply: object) -> Response:
    return Response(msgspec.json.encode(reply), media_type="application/json")
