"""The server's end of one HTTP/2 connection of gRPC calls. Belongs to the event loop.

grpc.aio spends five milliseconds of a core on the calls of one decode step, this one and a half.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import hpack

from model_server.pathways.http2 import frames
from model_server.pathways.http2.call import (
    MOST_MESSAGE,
    RESPONSE,
    STREAM_WINDOW,
    WRONG_TYPE,
    CallHandler,
    GrpcCall,
    Headers,
    MessageFault,
    too_much,
    trailers,
)
from model_server.pathways.http2.frames import (
    CHEAP,
    DEAR,
    ConnectionFault,
    Frame,
    Http2Reader,
    Patience,
)
from model_server.pathways.link.gathered_writer import GatheredWriter
from model_server.pathways.scheduling.answers import Buffer
from sax.errors import SaxError

logger = logging.getLogger(__name__)

OpenCall = Callable[[GrpcCall], CallHandler]

_CONNECTION_WINDOW = 1 << 30
_MOST_HEADERS = 1 << 18  # bytes of one header block, whose names may take 90 ms to read
_MOST_CALLS = 1000
_HIGH_WATER = 1 << 22
# A client that does not answer is gone after five seconds at most.
_PING_S, _DEAD_S, _TICK_S = 2.0, 4.5, 0.5
_LINGER_S = 1.0  # for a peer to read why its connection ends
_ASIDE = 1 << 16  # bytes that are read at once to be passed over
# A client widens windows and may reset a call as it takes an answer: more than any does.
_EARNED, _EARNING_BYTES = 4, 1 << 12
_INTERNAL = 13
_UNIMPLEMENTED = 12
_PING = b"are you?"


class GrpcConnection(asyncio.BufferedProtocol):
    """Reads calls and writes their answers."""

    def __init__(
        self,
        methods: Mapping[str, OpenCall],
        opened: Callable[[GrpcConnection], None],
        ended: Callable[[GrpcConnection], None],
    ) -> None:
        """methods: by path, as in "/package.Service/Method". Raise SaxError to refuse a call."""
        self._methods = methods
        self._opened = opened
        self._ended = ended
        self._reader = Http2Reader(self._take)
        self._headers = hpack.Decoder(max_header_list_size=_MOST_HEADERS)
        self._calls: dict[int, GrpcCall] = {}
        self._last = 0  # stream that the client opened
        self._block: tuple[int, int, bytearray] | None = None  # stream, flags, headers so far
        self._window = frames.WINDOW  # bytes that the client takes
        self._stream_window = frames.WINDOW
        self._max_frame = 1 << 14
        self._left = _CONNECTION_WINDOW  # bytes that the client may send
        self._collected = 0  # bytes of messages that are incomplete
        self._patience = Patience(asyncio.get_running_loop().time)
        self._paused = False
        self._writer: GatheredWriter | None = None
        self._peer = ""
        self._refused_s: float | None = None  # since when nothing is taken any more
        self._heard_s = 0.0
        self._ticked_s = 0.0
        self._asked = False  # a ping is on its way
        self._ticking: asyncio.TimerHandle | None = None

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        transport.set_write_buffer_limits(_HIGH_WATER)
        self._writer = GatheredWriter(transport)
        if (found := transport.get_extra_info("socket")) is not None and found.family in (
            socket.AF_INET,
            socket.AF_INET6,
        ):
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        name = transport.get_extra_info("peername")
        self._peer = f"{name[0]}:{name[1]}" if name else "a client"
        self._write(
            frames.settings(
                {
                    frames.MAX_CONCURRENT_STREAMS: _MOST_CALLS,
                    frames.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                    frames.MAX_FRAME_SIZE: frames.MAX_FRAME,
                    frames.MAX_HEADER_LIST_SIZE: _MOST_HEADERS,
                }
            ),
            frames.window_update(0, _CONNECTION_WINDOW - frames.WINDOW),
        )
        self._heard_s = self._ticked_s = asyncio.get_running_loop().time()
        self._tick()
        self._opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.space() if self._refused_s is None else memoryview(bytearray(_ASIDE))

    def buffer_updated(self, nbytes: int) -> None:
        if self._refused_s is not None:
            return
        self._heard_s = asyncio.get_running_loop().time()
        self._asked = False
        try:
            self._reader.read(nbytes)
        except ConnectionFault as fault:
            logger.warning("the connection of %s ends: %s", self._peer, fault)
            self._refuse(fault)

    def pause_writing(self) -> None:
        self._paused = True
        self._patience.reading = False

    def resume_writing(self) -> None:
        self._paused = False
        self._patience.reading = True
        self._pump_all()

    def connection_lost(self, exc: Exception | None) -> None:
        self._writer = None
        self._reader.close()  # which refers to this, and this to it: they may stay for long
        if self._ticking is not None:
            self._ticking.cancel()
        calls = list(self._calls.values())
        self._calls.clear()
        for call in calls:
            call.over()
        self._ended(self)

    # The server's side

    def close(self, text: str) -> None:
        """End the connection, after all pending writes."""
        if self._writer is not None and self._writer.open:
            self._write(frames.goaway(self._last, frames.NO_ERROR, text))
            self._writer.close()

    def _refuse(self, fault: ConnectionFault) -> None:
        """Say why the connection ends, and drain the socket until the peer has read that.

        With unread bytes in its buffer, the kernel would drop what was written.
        """
        assert self._writer is not None
        self._write(frames.goaway(self._last, fault.code, str(fault)))
        self._refused_s = asyncio.get_running_loop().time()
        self._writer.finish()

    def _tick(self) -> None:
        """Ping a silent client; drop it if it does not answer."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        late_s, self._ticked_s = now_s - self._ticked_s - _TICK_S, now_s
        if late_s > _TICK_S:  # it was this process that stood still
            self._heard_s = min(now_s, self._heard_s + late_s)
        if self._refused_s is not None and now_s - self._refused_s > _LINGER_S:
            assert self._writer is not None
            self._writer.abort()
            return
        silent_s = now_s - self._heard_s
        if silent_s > _DEAD_S and self._asked:
            logger.warning("%s does not answer: its connection ends", self._peer)
            assert self._writer is not None
            self._writer.abort()
            return
        if silent_s > _PING_S and not self._asked:
            self._asked = True
            self._write(frames.ping(_PING))
        self._ticking = loop.call_later(_TICK_S, self._tick)

    def _write(self, *parts: Buffer) -> None:
        if self._writer is not None and self._refused_s is None:
            self._writer.write(parts)

    # Frames

    def _take(self, frame: Frame) -> None:
        """Raises ConnectionFault."""
        if self._block is not None and frame.kind != frames.CONTINUATION:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "headers that are interrupted")
        match frame.kind:
            case frames.DATA:
                self._data(frame)
            case frames.HEADERS:
                self._block = (frame.stream, frame.flags, bytearray(frames.unpadded(frame)))
                self._more_headers(frame)
            case frames.CONTINUATION:
                self._patience.spend(CHEAP, "pieces of headers")
                if self._block is None or self._block[0] != frame.stream:
                    raise ConnectionFault(frames.PROTOCOL_ERROR, "headers of nothing")
                self._block[2].extend(frame.payload)
                self._more_headers(frame)
            case frames.RST_STREAM:
                self._reset(frame)
            case frames.SETTINGS:
                self._settle(frame)
            case frames.PING:
                self._patience.spend(CHEAP, "pings")
                if not frame.flags & frames.ACK:
                    self._write(frames.ping(frames.eight_of(frame.payload), frames.ACK))
            case frames.WINDOW_UPDATE:
                self._widen(frame)
            case frames.PUSH_PROMISE:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "a client that pushes")
            case _:  # PRIORITY, GOAWAY (it will close), and kinds that are newer than this
                self._patience.spend(CHEAP, "frames that mean nothing here")

    def _more_headers(self, frame: Frame) -> None:
        assert self._block is not None
        stream, flags, block = self._block
        if len(block) > _MOST_HEADERS:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, f"more than {_MOST_HEADERS} of headers")
        if not frame.flags & frames.END_HEADERS:
            return
        self._block = None
        try:
            headers = dict(self._headers.decode(bytes(block), raw=True))
        except hpack.HPACKError as exc:
            raise ConnectionFault(frames.COMPRESSION_ERROR, f"headers: {exc}") from exc
        self._begin(stream, cast(Headers, headers))
        if flags & frames.END_STREAM and (call := self._calls.get(stream)) is not None:
            self._complete(call)

    def _begin(self, stream: int, headers: Headers) -> None:
        if stream in self._calls:  # trailers, which gRPC's clients do not send
            self._patience.spend(DEAR, "trailers")
            return
        if stream <= self._last or not stream % 2:
            raise ConnectionFault(frames.PROTOCOL_ERROR, f"a call on stream {stream}")
        self._last = stream
        if len(self._calls) >= _MOST_CALLS:
            self._patience.spend(DEAR, f"calls beyond {_MOST_CALLS} at a time")
            self._write(frames.rst_stream(stream, frames.REFUSED_STREAM))
            return
        if not headers.get(b"content-type", b"").startswith(b"application/grpc"):
            self._patience.spend(DEAR, "requests that are not gRPC's")
            self._write(*_headers_frame(stream, WRONG_TYPE, last=True))
            return
        call = GrpcCall(stream, headers, self._peer, self._stream_window, self._pump)
        self._calls[stream] = call
        opens = self._methods.get(call.path)
        if opens is None:
            call.end(_UNIMPLEMENTED, f"no method {call.path} here")
            return
        with _Refusing(call):
            call.handler = opens(call)

    def _data(self, frame: Frame) -> None:
        count, data = len(frame.payload), frames.unpadded(frame)
        if not (data or frame.flags & frames.END_STREAM):
            self._patience.spend(CHEAP, "empty data")
        self._left -= count
        if self._left < 0:
            raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "more than its window allows")
        if self._left < _CONNECTION_WINDOW // 2:
            self._write(frames.window_update(0, _CONNECTION_WINDOW - self._left))
            self._left = _CONNECTION_WINDOW
        call = self._calls.get(frame.stream)
        if call is None:
            if frame.stream > self._last or not frame.stream:
                raise ConnectionFault(frames.PROTOCOL_ERROR, f"data of stream {frame.stream}")
            return  # of a call that has ended
        call.left -= count
        call.held += count
        if call.left < 0:
            raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "more than a stream's window allows")
        with _Refusing(call):
            for message in self._collect(call, data):
                if call.handler is not None:
                    call.handler.received(message)
        self._credit(call)
        if frame.flags & frames.END_STREAM:
            self._complete(call)

    def _collect(self, call: GrpcCall, data: memoryview) -> Sequence[bytes]:
        """Return messages that are complete now. Raises MessageFault, also for too many others."""
        before = call.collected
        try:
            found = call.came(data)
        finally:
            self._collected += call.collected - before
        if self._collected > MOST_MESSAGE:
            raise too_much(self._collected)
        return found

    def _credit(self, call: GrpcCall) -> None:
        """Let the client send more, once half of its window is taken."""
        if call.reading and not call.complete and call.held >= STREAM_WINDOW // 2:
            self._write(frames.window_update(call.stream, call.held))
            call.left += call.held
            call.held = 0

    def _complete(self, call: GrpcCall) -> None:
        with _Refusing(call):
            call.ended()
            if call.handler is not None:
                call.handler.complete()

    def _reset(self, frame: Frame) -> None:
        frames.number_of(frame.payload)
        call = self._calls.get(frame.stream)
        self._patience.spend(CHEAP if call is None else DEAR, "calls that are taken back")
        if call is not None:
            self._drop(call)

    def _drop(self, call: GrpcCall) -> None:
        del self._calls[call.stream]
        self._collected -= call.collected
        call.over()

    def _settle(self, frame: Frame) -> None:
        named = len(frame.payload) // frames.SETTING_BYTES
        self._patience.spend(DEAR + CHEAP * named, "settings")
        if frame.flags & frames.ACK:
            return
        values = dict(frames.settings_of(frame.payload))  # of two, the last one stands
        if (window := values.get(frames.INITIAL_WINDOW_SIZE)) is not None:
            if window > frames.MOST_WINDOW:
                raise ConnectionFault(frames.FLOW_CONTROL_ERROR, f"a window of {window}")
            for call in self._calls.values():
                call.window = _widened(call.window, window - self._stream_window)
            self._stream_window = window
        if (most := values.get(frames.MAX_FRAME_SIZE)) is not None:
            self._max_frame = min(max(most, 1 << 14), frames.MAX_FRAME)
        self._write(frames.frame_head(frames.SETTINGS, frames.ACK, 0, 0))
        self._pump_all()

    def _widen(self, frame: Frame) -> None:
        self._patience.spend(CHEAP, "window updates")
        count = frames.number_of(frame.payload) & frames.MOST_WINDOW
        if not frame.stream:
            self._window = _widened(self._window, count)
            self._pump_all()
        elif (call := self._calls.get(frame.stream)) is not None:
            call.window = _widened(call.window, count)
            self._pump(call)

    # Answers

    def _pump_all(self) -> None:
        for call in list(self._calls.values()):
            self._pump(call)

    def _pump(self, call: GrpcCall) -> None:
        """Write what the client takes now of a call's answer."""
        if call.stream not in self._calls:
            return
        self._credit(call)
        if self._paused:
            return
        if (call.pending or call.status) and not call.begun:
            call.begun = True
            self._write(*_headers_frame(call.stream, RESPONSE))
        while call.pending and not self._paused:
            room = min(self._window, call.window, self._max_frame)
            if room <= 0:
                return
            parts = call.take(room)
            count = sum(map(len, parts))
            self._window -= count
            call.window -= count
            self._patience.earn(_EARNED + count / _EARNING_BYTES)
            self._write(frames.frame_head(frames.DATA, 0, call.stream, count), *parts)
        if call.status is not None and not call.pending:
            self._end(call, *call.status)

    def _end(self, call: GrpcCall, code: int, text: str) -> None:
        self._write(*_headers_frame(call.stream, trailers(code, text), last=True))
        if not call.complete:  # the rest of its request is not needed
            self._write(frames.rst_stream(call.stream, frames.NO_ERROR))
        self._patience.earn(_EARNED)
        self._drop(call)


class _Refusing:
    """Ends a call with the status of an exception raised within."""

    def __init__(self, call: GrpcCall) -> None:
        self._call = call

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, ConnectionFault):
            return False
        if isinstance(error, SaxError):
            self._call.refuse(error)
        elif isinstance(error, MessageFault):
            self._call.end(error.code, str(error))
        elif isinstance(error, Exception):
            logger.exception("%s failed", self._call.path)
            self._call.end(_INTERNAL, f"{type(error).__name__}: {error}")
        return isinstance(error, Exception)


def _widened(window: int, by: int) -> int:
    """Return a window after a change. Raises ConnectionFault."""
    if window + by > frames.MOST_WINDOW:
        raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "a window without end")
    return window + by


def _headers_frame(stream: int, block: bytes, *, last: bool = False) -> tuple[bytes, bytes]:
    flags = frames.END_HEADERS | (frames.END_STREAM if last else 0)
    return frames.frame_head(frames.HEADERS, flags, stream, len(block)), block
