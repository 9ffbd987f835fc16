"""TokenService: token streams, and the calls of language models that have one answer."""

from __future__ import annotations

from typing import Any

from model_server.disaggregation.handoff import decode_ask, decode_contract, encode_handoff
from model_server.services.token_stream import TokenStreams
from model_server.serving.admission import Admission, check_admin
from model_server.serving.handler import Handler
from model_server.serving.passes.embeddings import Embeddings
from model_server.serving.prefiller import Prefiller
from sax.auth.acl import caller
from sax.auth.authentication import NO_AUTHENTICATION, Authentication
from sax.auth.security import Security
from sax.proto import prefill_pb2, prefill_pb2_grpc, tokens_pb2, tokens_pb2_grpc
from sax.wire.embed import (
    decode_classify,
    decode_embed,
    decode_pairs,
    encode_classified,
    encode_embedded,
    encode_pair_scores,
)
from sax.wire.prompts import decode_detokenize, decode_tokenize
from sax.wire.request_bounds import (
    check_detokenize,
    check_embed,
    check_inputs,
    check_pairs,
    check_tokenize,
)


class TokenService(TokenStreams, tokens_pb2_grpc.TokenServiceServicer):
    def __init__(
        self,
        handler: Handler,
        embeddings: Embeddings,
        authentication: Authentication = NO_AUTHENTICATION,
    ) -> None:
        super().__init__(handler, authentication)
        self._embeddings = embeddings

    async def Phases(self, request: Any, context: Any) -> tokens_pb2.PhasesResponse:
        """Tell how far these requests are; what is over, or never was here, is left out."""
        asked = set(request.request_ids)
        running = (each for stream in self._open for each in stream.running)
        return tokens_pb2.PhasesResponse(
            requests=[
                tokens_pb2.RequestPhase(request_id=each.request_id, phase=each.phase)
                for each in running
                if each.request_id in asked
            ]
        )

    async def Tokenize(self, request: Any, context: Any) -> tokens_pb2.TokenizeResponse:
        check_tokenize(request)
        model_id, prompt, special, chat = decode_tokenize(request)
        ids, max_context = await self._handler.tokenize(model_id, prompt, special, chat)
        texts = await self._handler.token_texts(model_id, ids) if request.token_texts else ()
        return tokens_pb2.TokenizeResponse(ids=ids, max_context=max_context, token_texts=texts)

    async def Detokenize(self, request: Any, context: Any) -> tokens_pb2.DetokenizeResponse:
        check_detokenize(request)
        text = await self._handler.detokenize(*decode_detokenize(request))
        return tokens_pb2.DetokenizeResponse(text=text)

    async def Embed(self, request: Any, context: Any) -> tokens_pb2.EmbedResponse:
        check_embed(request)
        asked, takes_tokens = decode_embed(request), request.takes_tokens
        return encode_embedded(await self._embeddings.embed(*asked, takes_tokens=takes_tokens))

    async def ScorePairs(self, request: Any, context: Any) -> tokens_pb2.ScorePairsResponse:
        check_pairs(request)
        return encode_pair_scores(await self._embeddings.score_pairs(*decode_pairs(request)))

    async def Classify(self, request: Any, context: Any) -> tokens_pb2.ClassifyResponse:
        check_inputs(request)
        model_id, inputs, candidates = decode_classify(request)
        found = await self._embeddings.classify(
            model_id, inputs, takes_tokens=request.takes_tokens, candidates=candidates
        )
        return encode_classified(found)


class PrefillService(prefill_pb2_grpc.PrefillServiceServicer):
    """For callers that may load models here: other servers of the same operator."""

    def __init__(self, prefiller: Prefiller, admission: Admission, security: Security) -> None:
        self._prefiller = prefiller
        self._admission = admission
        self._security = security

    async def Prefill(self, request: Any, context: Any) -> prefill_pb2.Ticket:
        """Returns once the prompt is computed and its pages can be fetched."""
        self._check()
        self._admission.check_open()
        self._admission.enter()
        try:
            handoff = await self._prefiller.compute(
                request.model_key,
                decode_contract(request.contract),
                decode_ask(request),
                request.key,
            )
        finally:
            self._admission.leave()
        return encode_handoff(handoff)

    async def Release(self, request: Any, context: Any) -> prefill_pb2.ReleaseResponse:
        self._check()
        self._prefiller.release(request.key)
        return prefill_pb2.ReleaseResponse()

    def _check(self) -> None:
        if self._security.authenticates:
            check_admin(caller(), self._security.admins, "have prompts computed")
