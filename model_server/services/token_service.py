"""Token streams: many requests on one connection, one message per engine step for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple

from model_server.disaggregation.handoff import decode_ask, decode_contract, encode_handoff
from model_server.services.call import account_of_call
from model_server.services.connection import BEAT, Delivery, TokenStream
from model_server.serving.admission import Admission, check_admin
from model_server.serving.handler import GENERATE_STREAM, Handler
from model_server.serving.passes.embeddings import Embeddings
from model_server.serving.prefiller import Prefiller
from sax.auth.acl import Principal, caller
from sax.auth.authentication import NO_AUTHENTICATION, Authentication
from sax.auth.security import Security
from sax.errors import SaxError
from sax.proto import prefill_pb2, prefill_pb2_grpc, tokens_pb2, tokens_pb2_grpc
from sax.wire.embed import (
    decode_classify,
    decode_embed,
    encode_classified,
    encode_embedded,
    encode_pair_scores,
)
from sax.wire.request_bounds import (
    check_detokenize,
    check_embed,
    check_generate,
    check_inputs,
    check_pairs,
    check_token,
    check_tokenize,
)
from sax.wire.tokens import (
    decode_detokenize,
    decode_generate,
    decode_tokenize,
    encode_failure,
    put_chunk,
)

# Beats on token streams: a message every second, which tells a busy server from a dead one.
#
# They come from the event loop that serves the streams: if it stands still, so do they.

BEAT_S = 1.0  # sax.client.connection gives a server up after four of them


class Beats:
    """The streams whose callers asked for beats."""

    def __init__(self) -> None:
        self._streams: set[TokenStream] = set()
        self._timer: asyncio.TimerHandle | None = None

    def set(self, stream: TokenStream, wanted: bool) -> None:
        """Beat on this stream, now and every second, or no longer."""
        if not wanted:
            self.discard(stream)
            return
        self._streams.add(stream)
        stream.beat()
        if self._timer is None:
            self._beat_later()

    def discard(self, stream: TokenStream) -> None:
        self._streams.discard(stream)

    def _beat_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def _beat(self) -> None:
        self._timer = None
        for stream in self._streams:
            stream.beat()
        if self._streams:
            self._beat_later()


class _Sender(NamedTuple):
    """The caller that opened a stream."""

    principal: Principal
    account: str


class TokenService(tokens_pb2_grpc.TokenServiceServicer):
    def __init__(
        self,
        handler: Handler,
        embeddings: Embeddings,
        authentication: Authentication = NO_AUTHENTICATION,
    ) -> None:
        self._handler = handler
        self._embeddings = embeddings
        self._authentication = authentication
        self._connections: set[TokenStream] = set()
        self._beats = Beats()

    async def Stream(
        self, request_iterator: Any, context: Any
    ) -> AsyncGenerator[tokens_pb2.FromServer]:
        """Run until the caller hangs up, or half-closes and has every answer."""
        connection = TokenStream(self._handler, GENERATE_STREAM)
        self._connections.add(connection)
        sender = _Sender(caller(), account_of_call(context))
        reader = asyncio.create_task(
            _read(request_iterator, connection, self._beats, self._authentication, sender)
        )
        try:
            while deliveries := await connection.take():
                yield _message(deliveries)
            if reader.done():
                await reader  # a broken stream is an error of the call
        finally:
            reader.cancel()
            connection.close()
            self._beats.discard(connection)
            self._connections.discard(connection)

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
        return encode_embedded(await self._embeddings.embed(*decode_embed(request)))

    async def ScorePairs(self, request: Any, context: Any) -> tokens_pb2.ScorePairsResponse:
        check_pairs(request)
        return encode_pair_scores(
            await self._embeddings.score_pairs(request.model_key, request.first, request.second)
        )

    async def Classify(self, request: Any, context: Any) -> tokens_pb2.ClassifyResponse:
        check_inputs(request)
        return encode_classified(await self._embeddings.classify(*decode_classify(request)))

    def end(self) -> None:
        """Let every stream end once its requests are answered."""
        for connection in self._connections:
            connection.end()


def _message(deliveries: Sequence[Delivery]) -> tokens_pb2.FromServer:
    message = tokens_pb2.FromServer()
    add = message.chunks.add
    if deliveries[0] is BEAT:
        message.beats, deliveries = True, deliveries[1:]
    for id, chunk in deliveries:
        if isinstance(chunk, SaxError):
            add().MergeFrom(encode_failure(id, chunk))
        else:
            put_chunk(add(), id, chunk)
    return message


async def _read(
    request_iterator: Any,
    connection: TokenStream,
    beats: Beats,
    authentication: Authentication,
    sender: _Sender,
) -> None:
    """Start and cancel requests in order, so that a cancel never overtakes its request."""
    try:
        async for message in request_iterator:
            if message.HasField("generate"):
                _start(connection, message.generate, authentication, sender)
            elif message.HasField("cancel"):
                connection.cancel(message.cancel.id)
            elif message.HasField("beats"):
                beats.set(connection, message.beats)
    except BaseException:
        connection.close()
        raise
    connection.end()


def _start(
    connection: TokenStream,
    message: tokens_pb2.Generate,
    authentication: Authentication,
    sender: _Sender,
) -> None:
    """Start one request as its own user: requests of several users may share a stream."""
    try:
        check_token(message)
        authentication.enter_message(message.token, sender.principal)
        check_generate(message)
        question = decode_generate(message, sender.account)
    except SaxError as error:
        connection.fail(message.id, error)
    else:
        connection.start(message.id, question)


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
