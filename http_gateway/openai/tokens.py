"""vLLM's /tokenize and /detokenize."""

from __future__ import annotations

from functools import partial

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from http_gateway.backend import Backend
from http_gateway.body import read_body
from http_gateway.openai.reply_types import TokenList, TokensText
from http_gateway.openai.tokens_schema import (
    DETOKENIZE,
    TOKENIZE,
    DetokenizeBody,
    TokenizeBody,
)
from http_gateway.openapi import JSON, WITH_MODEL, OpenAiError, operation
from sax.fields.field import RequestRoute
from sax.types import ChatOptions, Message, Tokenized

_told = partial(operation, errors=OpenAiError, statuses=WITH_MODEL)
_TOKENIZE = _told(TokenList, body=TOKENIZE)
_DETOKENIZE = _told(TokensText, body=DETOKENIZE)


class TokenRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def router(self) -> APIRouter:
        router = APIRouter(tags=["tokens"])
        add = router.add_api_route
        add("/tokenize", self.tokenize, methods=["POST"], **_TOKENIZE)
        add("/detokenize", self.detokenize, methods=["POST"], **_DETOKENIZE)
        return router

    async def tokenize(self, request: Request) -> Response:
        """Return the token ids of a text or chat as the model reads them."""
        raw = await read_body(request, RequestRoute.TEXT_TO_TOKENS)
        body = TokenizeBody.model_validate_json(raw)
        prompt, chat = await self._backend.with_images(body.text()), body.options
        model_id = await self._backend.catalog.resolve_or_only(body.model)
        work = self._tokenized(request, body, model_id, prompt, chat)
        found = await self._backend.run(request, work)
        reply: TokenList = {
            "count": len(found.ids),
            "max_model_len": found.max_context,
            "tokens": [*found.ids],
            "token_strs": [*found.token_texts] if body.return_token_strs else None,
        }
        return Response(msgspec.json.encode(reply), media_type=JSON)

    async def detokenize(self, request: Request) -> Response:
        """Return the text of token ids; control tokens are written out."""
        raw = await read_body(request, RequestRoute.TOKENS_TO_TEXT)
        body = DetokenizeBody.model_validate_json(raw)
        body.check()
        model_id = await self._backend.catalog.resolve_or_only(body.model)
        limit_s = self._backend.limit_s(request, body.timeout)
        work = self._backend.client.detokenize(model_id, body.tokens, limit_s)
        reply: TokensText = {"prompt": await self._backend.run(request, work)}
        return Response(msgspec.json.encode(reply), media_type=JSON)

    async def _tokenized(
        self,
        request: Request,
        body: TokenizeBody,
        model_id: str,
        prompt: str | tuple[Message, ...],
        chat: ChatOptions,
    ) -> Tokenized:
        client, limit_s = self._backend.client, self._backend.limit_s(request, body.timeout)
        special = body.add_special_tokens
        if body.return_token_strs:
            return await client.tokenize_texts(
                model_id, prompt, limit_s, add_special_tokens=special, chat=chat
            )
        ids, most = await client.tokenize(
            model_id, prompt, limit_s, add_special_tokens=special, chat=chat
        )
        return Tokenized(tuple(ids), most)
