"""Token streams: many requests on one connection, one message per engine step for all of them.

A stream starts requests, cancels them and collects their chunks. `take` returns all chunks of one
delivery of the engine at once, one per request, so each delivery sends one message per connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from typing import Any, NamedTuple

from model_server.services.beats import Beats
from model_server.services.call import account_of_call
from model_server.serving.answers.running_request import RunningRequest
from model_server.serving.handler import GENERATE_STREAM, Handler
from sax.auth.acl import Principal, caller
from sax.auth.authentication import Authentication
from sax.errors import InvalidRequest, SaxError
from sax.proto import tokens_pb2
from sax.types import GenerateRequest, TokenChunk
from sax.wire.request_bounds import check_generate, check_token
from sax.wire.tokens import decode_generate, encode_failure, put_chunk


class Delivery(NamedTuple):
    """One chunk for one request; an error or a finish reason ends it."""

    id: int
    chunk: TokenChunk | SaxError


BEAT = Delivery(0, TokenChunk(""))  # for no request; only ever the first delivery of a message


class TokenStream:
    """Requests of one caller, on the event loop. Call `take` until it returns [], then `close`."""

    def __init__(self, handler: Handler, method: str) -> None:
        self._handler = handler
        self._method = method
        self._requests: dict[int, RunningRequest | None] = {}  # None: being checked
        self._outbox: list[Delivery] = []
        self._places: dict[int, int] = {}  # in the outbox, by request
        self._beats = False  # the next `take` has a beat
        self._ready = asyncio.Event()
        self._ended = False

    def start(self, id: int, request: GenerateRequest) -> None:
        """Start a request under the caller's id. A bad request fails alone, through `take`.

        Does not wait for a long prompt to be encoded, so no request delays the next one, and a
        cancel finds every request that came before it.
        """
        if id in self._requests:
            raise InvalidRequest(f"request {id} is already running: use unique ids", param="id")
        self._requests[id] = None
        try:
            running = self._handler.start(request, self._method, lambda chunk: self.put(id, chunk))
        except SaxError as error:
            self.put(id, error)
        except BaseException:
            del self._requests[id]
            raise
        else:
            self._requests[id] = running

    @property
    def running(self) -> list[RunningRequest]:
        return [each for each in self._requests.values() if each is not None]

    def cancel(self, id: int) -> None:
        """Cancel a request; a no-op if it is over or unknown."""
        running = self._requests.pop(id, None)
        if running is not None:
            running.cancel()
            self._ready.set()

    async def take(self) -> list[Delivery]:
        """Wait for and return everything since the last call; [] when all requests are over."""
        while not self._outbox and not self._beats:
            if self._ended and not self._requests:
                return []
            self._ready.clear()
            await self._ready.wait()
        taken, self._outbox = self._outbox, []
        self._places.clear()
        if self._beats:
            self._beats = False
            taken.insert(0, BEAT)
        return taken

    def beat(self) -> None:
        """Let the next `take` return at once, with BEAT first."""
        self._beats = True
        self._ready.set()

    def end(self) -> None:
        """No more requests will be started."""
        self._ended = True
        self._ready.set()

    def close(self) -> None:
        """Cancel everything that runs: the caller is gone."""
        for running in self.running:
            running.cancel()
        self._requests.clear()
        self.end()

    def put(self, id: int, chunk: TokenChunk | SaxError) -> None:
        """Have the next `take` return this; an error or a finish reason ends the request."""
        if isinstance(chunk, SaxError) or chunk.finish_reason is not None:
            self._requests.pop(id, None)
        self._collect(id, chunk)
        self._ready.set()

    def _collect(self, id: int, chunk: TokenChunk | SaxError) -> None:
        """Join the chunk with the one that waits for the same request, if there is one."""
        place = self._places.get(id)
        if place is not None and isinstance(chunk, TokenChunk):
            waiting = self._outbox[place].chunk
            # After its end the caller may use the id again.
            if isinstance(waiting, TokenChunk) and waiting.finish_reason is None:
                self._outbox[place] = Delivery(id, waiting.joined(chunk))
                return
        self._places[id] = len(self._outbox)
        self._outbox.append(Delivery(id, chunk))


class _Sender(NamedTuple):
    """The caller that opened a stream."""

    principal: Principal
    account: str


class TokenStreams:
    """All streams of a server, as a part of its token service."""

    def __init__(self, handler: Handler, authentication: Authentication) -> None:
        self._handler = handler
        self._authentication = authentication
        self._open: set[TokenStream] = set()
        self._beats = Beats()

    async def Stream(
        self, request_iterator: Any, context: Any
    ) -> AsyncGenerator[tokens_pb2.FromServer]:
        """Run until the caller hangs up, or half-closes and has every answer."""
        stream = TokenStream(self._handler, GENERATE_STREAM)
        self._open.add(stream)
        sender = _Sender(caller(), account_of_call(context))
        reader = asyncio.create_task(
            _read(request_iterator, stream, self._beats, self._authentication, sender)
        )
        try:
            while deliveries := await stream.take():
                yield _message(deliveries)
            if reader.done():
                await reader  # a broken stream is an error of the call
        finally:
            reader.cancel()
            stream.close()
            self._beats.discard(stream)
            self._open.discard(stream)

    def end(self) -> None:
        """Let every stream end once its requests are answered."""
        for stream in self._open:
            stream.end()


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
    messages: AsyncIterable[tokens_pb2.ToServer],
    stream: TokenStream,
    beats: Beats,
    authentication: Authentication,
    sender: _Sender,
) -> None:
    """Start and cancel requests in order, so that a cancel never overtakes its request."""
    try:
        async for message in messages:
            if message.HasField("generate"):
                _start(stream, message.generate, authentication, sender)
            elif message.HasField("cancel"):
                stream.cancel(message.cancel.id)
            elif message.HasField("beats"):
                beats.set(stream, message.beats)
    except BaseException:
        stream.close()
        raise
    stream.end()


def _start(
    stream: TokenStream,
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
        stream.put(message.id, error)
    else:
        stream.start(message.id, question)
