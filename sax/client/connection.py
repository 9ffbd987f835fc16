"""Client connection to one model server: its channel, and a token stream shared by all requests.

This is the hot path of every client: one message per engine step, dispatched to its requests
without a task or a lock.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import aclosing, contextmanager
from typing import TypeVar

import grpc.aio
from google.protobuf.message import Message

from sax.auth.credentials import (
    Metadata,
    opener_metadata,
    own_account,
    presented_account,
    presented_token,
)
from sax.client.inbox import Inbox, Item, Mailbox, is_last
from sax.client.losses import (
    SILENCE_S,
    Breaks,
    Pulse,
    ReplicaDied,
    ReplicaSilent,
    end_of_stream,
    is_death,
)
from sax.client.routing import ServerLoad
from sax.errors import Cancelled, DeadlineExceeded, InvalidRequest, ReplicaLost, SaxError, fresh
from sax.proto import tokens_pb2
from sax.types import GenerateRequest, TokenChunk
from sax.wire import rpc
from sax.wire.tokens import decode_chunk, decode_failure, encode_generate, put_timeout

_LATER_S = 0.5  # past a deadline, for the server to say how the request spent its time

Reply = TypeVar("Reply", bound=Message)
Outgoing = asyncio.Queue[tokens_pb2.ToServer | None]


class ModelServerConnection:
    """Connection to one model server. Use and close it in one event loop."""

    def __init__(self, address: str, silence_s: float = SILENCE_S) -> None:
        """Connects on first use, and reconnects on the next use after a break.

        Requests fail with ReplicaLost when a server that sends beats is silent for `silence_s`.
        """
        self.address = address
        self.peer = f"the model server at {address}"
        self.channel = rpc.open_channel(address)
        self._open_stream = self.channel.stream_stream(
            "/sax.tokens.TokenService/Stream",
            tokens_pb2.ToServer.SerializeToString,
            tokens_pb2.FromServer.FromString,
        )
        self._numbers = itertools.count(1)
        self._inboxes: dict[int, Mailbox] = {}
        self._outgoing: Outgoing | None = None  # None: no stream is open
        self._reader: asyncio.Task[None] | None = None
        self._pulse = Pulse(self._owes, self._ask_for_beats, self._fall_silent, silence_s)
        self._calls = 0
        self._breaks = Breaks()

    @property
    def outstanding(self) -> int:
        return len(self._inboxes) + self._calls

    @property
    def load(self) -> ServerLoad:
        return ServerLoad(self._breaks.broke_lately, self.outstanding)

    async def call(
        self, path: str, request: Message, reply: type[Reply], timeout_s: float | None = None
    ) -> Reply:
        """Make a unary call to /package.Service/Method. Raises SaxError."""
        with self._counted():
            return await rpc.call(
                self.channel, path, request, reply, peer=self.peer, timeout_s=timeout_s
            )

    async def call_stream(
        self, path: str, request: Message, reply: type[Reply], timeout_s: float | None = None
    ) -> AsyncGenerator[Reply, None]:
        """Make a server-streaming call; closing the iterator cancels it. Raises SaxError."""
        messages = rpc.call_stream(
            self.channel, path, request, reply, peer=self.peer, timeout_s=timeout_s
        )
        with self._counted():
            async with aclosing(messages):
                async for message in messages:
                    yield message

    async def generate(
        self, request: GenerateRequest, timeout_s: float | None = None
    ) -> AsyncGenerator[TokenChunk, None]:
        """Yield the chunks of one answer; closing early cancels it on the server.

        Raises what the server raised, ReplicaLost when the connection breaks, DeadlineExceeded.
        """
        inbox = Inbox()
        with self._asked(request, inbox, timeout_s) as number:
            finished = False
            while not finished:
                chunk = await inbox.get()
                if finished := is_last(chunk):
                    self._answered(number, chunk)
                yield decode_chunk(chunk)

    async def generate_to(
        self,
        request: GenerateRequest,
        sink: Callable[[TokenChunk], None],
        timeout_s: float | None = None,
    ) -> None:
        """Call `sink` with each chunk as it arrives; return after the last.

        Raises what `generate` raises, and what the sink raises. Cancelling cancels on the server.
        """
        outlet = Outlet(sink)
        with self._asked(request, outlet, timeout_s) as number:
            self._answered(number, await outlet.over)

    async def close(self) -> None:
        """Close the connection; requests in progress fail with Cancelled."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        await self.channel.close()

    @contextmanager
    def _counted(self) -> Generator[None, None, None]:
        """Count a call as outstanding, and record the break if it raises ReplicaLost."""
        self._calls += 1
        try:
            yield
        except ReplicaLost as error:
            self._breaks.note()
            if not is_death(error):
                raise
            raise self._died(error) from error
        finally:
            self._calls -= 1

    def _died(self, error: SaxError) -> ReplicaDied:
        """Return the error of a request that waited for a part of its answer."""
        heard = sum(inbox.heard for inbox in self._inboxes.values())
        return self._breaks.death(error, heard, len(self._inboxes) - heard + self._calls)

    @contextmanager
    def _asked(
        self, request: GenerateRequest, inbox: Mailbox, timeout_s: float | None
    ) -> Generator[int, None, None]:
        """Send a request whose chunks go to this inbox; cancel it if unfinished at the end."""
        number = next(self._numbers)
        message = tokens_pb2.ToServer(generate=encode_generate(number, request))
        # An answer that moves to another replica keeps its deadline: only what is left of it.
        put_timeout(message.generate, timeout_s)
        message.generate.token = presented_token()
        if not request.account:
            message.generate.account = presented_account()
        _check_size(message)
        self._send(message)
        self._inboxes[number] = inbox
        self._pulse.watch()
        timer = self._start_timer(inbox, timeout_s)
        try:
            yield number
        finally:
            if timer is not None:
                timer.cancel()
            self._cancel(number)

    def _answered(self, number: int, last: tokens_pb2.Chunk) -> None:
        """Forget a finished request. Raises the failure in its last chunk, if any."""
        self._inboxes.pop(number, None)
        if last.HasField("failure"):
            raise decode_failure(last)

    def _send(self, message: tokens_pb2.ToServer) -> None:
        if self._outgoing is None:
            opener = opener_metadata()
            self._outgoing = asyncio.Queue()
            self._reader = asyncio.create_task(
                self._read(self._outgoing, opener), name=self.peer, context=own_account()
            )
        self._outgoing.put_nowait(message)

    def _cancel(self, number: int) -> None:
        if self._inboxes.pop(number, None) is not None and self._outgoing is not None:
            self._outgoing.put_nowait(
                tokens_pb2.ToServer(cancel=tokens_pb2.Cancel(id=number)),
            )

    def _start_timer(self, inbox: Mailbox, timeout_s: float | None) -> asyncio.TimerHandle | None:
        if timeout_s is None:
            return None
        late = DeadlineExceeded(f"the answer was not complete within {timeout_s:g} s")
        return asyncio.get_running_loop().call_later(timeout_s + _LATER_S, inbox.put, late)

    async def _read(self, outgoing: Outgoing, opener: Metadata) -> None:
        """Read one stream to its end: dispatch its messages, then fail open requests."""
        stream = self._open_stream(_requests(outgoing), metadata=opener)
        error: SaxError = Cancelled("the client was closed")
        try:
            while isinstance(message := await stream.read(), tokens_pb2.FromServer):
                self._dispatch(message)
            error = ReplicaLost(f"{self.peer} ended the stream")
        except grpc.aio.AioRpcError as exc:
            error = end_of_stream(rpc.to_sax_error(exc, self.peer), exc.details() or "")
        except asyncio.CancelledError:
            if rpc.is_cancelled_here():
                raise
            error = ReplicaLost(f"{self.peer} ended the stream")
        finally:
            outgoing.put_nowait(None)
            stream.cancel()
            if self._outgoing is outgoing:  # else another stream is open: this one fell silent
                self._pulse.beats = False  # what answers next may be of an older version
                self._close_stream(error)

    def _owes(self) -> int:
        return len(self._inboxes)

    def _ask_for_beats(self, wanted: bool) -> None:
        self._send(tokens_pb2.ToServer(beats=wanted))

    def _fall_silent(self) -> None:
        reader = self._reader
        self._close_stream(ReplicaSilent(f"{self.peer} has fallen silent: it hangs or is cut off"))
        if reader is not None:
            reader.cancel()

    def _close_stream(self, error: SaxError) -> None:
        self._outgoing = None
        self._pulse.stop()
        self._fail_all(error)

    def _dispatch(self, message: tokens_pb2.FromServer) -> None:
        pulse = self._pulse
        pulse.heard = True
        if not pulse.beats:  # asked of few messages: reading a field costs more than all the rest
            pulse.beats = message.beats
        inboxes = self._inboxes
        for chunk in message.chunks:
            inbox = inboxes.get(chunk.id)
            if inbox is not None:  # None: cancelled meanwhile
                inbox.put(chunk)

    def _fail_all(self, error: SaxError) -> None:
        if not isinstance(error, Cancelled):
            self._breaks.note()
        died = is_death(error)
        waiting = {number for number, inbox in self._inboxes.items() if died and not inbox.heard}
        errors = {number: self._died(error) for number in waiting}
        inboxes, self._inboxes = self._inboxes, {}
        for number, inbox in inboxes.items():
            inbox.put(errors.get(number) or fresh(error))


async def _requests(outgoing: Outgoing) -> AsyncIterator[tokens_pb2.ToServer]:
    while (message := await outgoing.get()) is not None:
        yield message


def _check_size(message: tokens_pb2.ToServer) -> None:
    """Refuse what the server would not read: it would end the stream, and every request on it."""
    size = message.ByteSize()
    if size > rpc.REQUEST_BYTES:
        raise InvalidRequest(
            f"the request has {size} bytes: send at most {rpc.REQUEST_BYTES}", param="prompt"
        )


class Outlet:
    """Passes chunks to a sink as they arrive: only the end wakes a task, not each token."""

    __slots__ = ("_sink", "heard", "over")

    def __init__(self, sink: Callable[[TokenChunk], None]) -> None:
        self.heard = False
        self._sink = sink
        # The last chunk, or the error that replaced it or that the sink raised.
        self.over: asyncio.Future[tokens_pb2.Chunk] = asyncio.get_running_loop().create_future()

    def put(self, item: Item) -> None:
        self.heard = True
        if self.over.done():
            return
        try:
            if isinstance(item, SaxError):
                raise item
            if not self._hand_on(item):
                self.over.set_result(item)
        except Exception as exc:  # a bug in one sink must not end the stream of all requests
            self.over.set_exception(exc)
            self.over.exception()  # mark as retrieved: a cancelled reader never does

    def _hand_on(self, chunk: tokens_pb2.Chunk) -> bool:
        """Pass a chunk to the sink; return True if more will come."""
        if chunk.HasField("failure"):
            return False
        decoded = decode_chunk(chunk)
        self._sink(decoded)
        return decoded.finish_reason is None
