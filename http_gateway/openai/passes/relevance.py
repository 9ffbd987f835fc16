"""/v1/rerank as at Jina and Cohere, /v1/score and /v1/classify as at vLLM."""

from __future__ import annotations

import time
import uuid
from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from http_gateway.backend import Backend
from http_gateway.body import read_body
from http_gateway.openai.passes.relevance_schema import (
    CLASSIFY,
    RERANK,
    SCORE,
    ClassifyRequest,
    RerankRequest,
    ScoreRequest,
)
from http_gateway.openai.reply_types import ClassList, RankedList, ScoreList
from http_gateway.openapi import WITH_MODEL, OpenAiError, operation
from sax.fields.field import RequestRoute
from sax.types import Classified, PairScores, ranked

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
        results: list[dict[str, object]] = []
        for each in ranked(found.scores, body.top_n):
            entry: dict[str, object] = {"index": each.index}
            if body.return_documents:
                entry["document"] = {"text": body.documents[each.index]}
            results.append(entry | {"relevance_score": each.relevance_score})
        reply = {"id": _id("rerank"), "model": body.model, "results": results}
        return _json(reply | {"usage": _usage(found.prompt_tokens)})

    async def score(self, request: Request) -> Response:
        """Score how well the texts of each pair go together."""
        body = ScoreRequest.model_validate_json(await read_body(request, RequestRoute.SCORE))
        body.check()
        found = await self._pairs(request, body, body.text_1, body.text_2)
        data = [
            {"index": index, "object": "score", "score": score}
            for index, score in enumerate(found.scores)
        ]
        return _json(_list("score", body.model, data, found.prompt_tokens))

    async def classify(self, request: Request) -> Response:
        """Give texts a score per label of a classifier."""
        body = ClassifyRequest.model_validate_json(await read_body(request, RequestRoute.CLASSIFY))
        body.check()
        backend = self._backend
        model_id = await backend.catalog.resolve(body.model)
        limit_s = backend.limit_s(request, body.timeout)
        work = backend.client.classify(model_id, body.inputs(), limit_s)
        found = await backend.run(request, work)
        backend.count(found.prompt_tokens)
        data = _classes(found)
        return _json(_list("classify", body.model, data, found.prompt_tokens))

    async def _pairs(
        self,
        request: Request,
        body: RerankRequest | ScoreRequest,
        first: list[str],
        second: list[str],
    ) -> PairScores:
        backend = self._backend
        model_id = await backend.catalog.resolve(body.model)
        limit_s = backend.limit_s(request, body.timeout)
        work = backend.client.score_pairs(model_id, first, second, limit_s)
        found = await backend.run(request, work)
        backend.count(found.prompt_tokens)
        return found


def _classes(found: Classified) -> list[dict[str, object]]:
    return [
        {
            "index": index,
            "label": found.labels[max(range(len(scores)), key=scores.__getitem__)],
            "probs": scores,
            "num_classes": len(scores),
        }
        for index, scores in enumerate(found.scores)
    ]


def _list(
    kind: str, model: str, data: list[dict[str, Any]], prompt_tokens: int
) -> dict[str, object]:
    return {
        "id": _id(kind),
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": data,
        "usage": _usage(prompt_tokens),
    }


def _usage(prompt_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}


def _id(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex}"


def _json(reply: object) -> Response:
    return Response(msgspec.json.encode(reply), media_type="application/json")
