"""The interceptor of every gRPC server: who may call, what can be read, and which errors leave.

Callers are authenticated by their headers before their message is read. gRPC reads a message only
when the handler asks for it, so the message of a refused caller takes up no memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from inspect import isasyncgenfunction
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from sax import errors, memory_return, need
from sax.auth.authentication import NO_AUTHENTICATION, Authentication, is_open
from sax.errors import DeadlineExceeded, Internal, InvalidRequest, SaxError
from sax.format import LONGEST_QUOTE, without_long_words
from sax.wire.rpc import ERROR_KEY, NEED_KEY, PARAM_KEY, RETRY_AFTER_KEY

logger = logging.getLogger(__name__)


# Reads the messages of callers that nobody knows: few at once, each within a time.
#
# With the server's limit for one message this bounds the memory that strangers can take up.

_AT_ONCE = 8  # a probe's message takes less than a millisecond
_WITHIN_S = 5.0


class Strangers:
    """The messages that one server reads from unauthenticated callers."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def read(self, requests: AsyncIterator[Any]) -> Any:
        """Return the only message of a call. Raises DeadlineExceeded when it is late."""
        try:
            return await self._next(requests)
        except StopAsyncIteration:
            raise InvalidRequest("the call has no message: send one", param="request") from None

    async def read_each(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        while True:
            try:
                message = await self._next(requests)
            except StopAsyncIteration:
                return
            yield message

    async def _next(self, requests: AsyncIterator[Any]) -> Any:
        async with self._turns:
            try:
                async with asyncio.timeout(_WITHIN_S):
                    return await anext(requests)
            except TimeoutError as exc:
                raise DeadlineExceeded(
                    f"no message arrived within {_WITHIN_S:g} s: send it at once, or authenticate"
                ) from exc


if TYPE_CHECKING:  # generic in the stubs only
    Handler = grpc.RpcMethodHandler[Any, Any]
    Context = grpc.aio.ServicerContext[Any, Any]
Method = Callable[[Any, "Context"], Any]
Enter = Callable[["Context"], None]
_Abort = tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]  # of `context.abort`
Take = Callable[[Any, "Context"], Awaitable[Any]]  # from what gRPC gives to what the method reads

# Percent-encoded bytes; gRPC refuses headers larger than about 8 KiB in total.
_MAX_TEXT = 4000
_MAX_PARAM = 400

_EOF: Any = vars(grpc.aio)["EOF"]  # not in its stubs
_CANCELLED_BY_CALLER = (grpc.aio.AbortError, asyncio.CancelledError, GeneratorExit)


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """The place of a message that cannot be parsed: gRPC itself would answer UNKNOWN."""

    error: InvalidRequest


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Authenticates the caller of every method, and maps exceptions to the table's status codes."""

    def __init__(self, authentication: Authentication = NO_AUTHENTICATION) -> None:
        self._authentication = authentication
        self._strangers = Strangers()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        authentication, path = self._authentication, handler_call_details.method
        if authentication.by_header:
            try:  # this task runs the handler too, for the caller that is set here
                authentication.enter(path, handler_call_details.invocation_metadata)
            except SaxError as error:
                return _refusing(error)
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        strangers = self._strangers if authentication.by_header and is_open(path) else None
        return _guard_handler(handler, path, self._enter(path), strangers)

    def _enter(self, path: str) -> Enter:
        """Authenticate by certificate: only a handler's context has it, and without one nobody
        connects at all."""
        authentication = self._authentication
        if authentication.by_header or not authentication.on:
            return _everybody
        return lambda context: authentication.enter(
            path, context.invocation_metadata() or (), context.auth_context()
        )


def _everybody(context: Context) -> None:
    """No check: the caller is known, or need not be."""


def _refusing(error: SaxError) -> Handler:
    """Return a handler that ends a call of any kind without reading its message."""

    async def refuse(requests: Any, context: Context) -> None:
        await context.abort(*_abort_of(error))

    return grpc.stream_stream_rpc_method_handler(refuse)


def _guard_handler(
    handler: Any, path: str, enter: Enter, strangers: Strangers | None = None
) -> Handler:
    streaming: bool = handler.request_streaming
    method = next(method for method in handler[4:] if method is not None)
    take = _taking(streaming, strangers)
    return _MAKERS[streaming or strangers is not None, handler.response_streaming](
        _guard(method, enter, take),
        request_deserializer=_reading(handler.request_deserializer, path),
        response_serializer=handler.response_serializer,
    )


_MAKERS: dict[tuple[bool, bool], Any] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def _reading(
    parse: Callable[[bytes], Any] | None, path: str
) -> Callable[[bytes], Any | _Unreadable] | None:
    """Return failures to parse as values: an exception here would reach the log and the caller
    without a type."""
    if parse is None:
        return None

    def read(data: bytes) -> Any | _Unreadable:
        memory_return.after(len(data))
        try:
            return parse(data)
        except InvalidRequest as error:
            return _Unreadable(error)
        except DecodeError as error:
            text = f"the {len(data)} bytes sent to {path} are not a valid request message: {error}"
            return _Unreadable(InvalidRequest(text, param="request"))

    return read


def _taking(streaming: bool, strangers: Strangers | None) -> Take:
    """Return how a method gets its message, or its iterator of messages."""

    async def take_one(request: Any, context: Context) -> Any:
        if strangers is not None:
            request = await strangers.read(_messages(context))
        return _readable(request)

    async def take_many(_: Any, context: Context) -> AsyncIterator[Any]:
        messages = _messages(context)
        return _each_readable(messages if strangers is None else strangers.read_each(messages))

    return take_many if streaming else take_one


async def _messages(context: Context) -> AsyncIterator[Any]:
    """Yield what comes. gRPC's own iterator is in a cycle with itself: after a call that ended
    before its messages did, the last of them would stay until the garbage collector comes by."""
    while (message := await context.read()) is not _EOF:
        yield message


def _readable(message: Any) -> Any:
    if isinstance(message, _Unreadable):
        raise message.error
    return message


async def _each_readable(messages: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for message in messages:
        yield _readable(message)


def _guard(method: Method, enter: Enter, take: Take) -> Method:
    """Wrap a servicer method, a coroutine or an async generator, mapping its exceptions.

    gRPC keeps the exception of `abort` in a cycle with its call until the garbage collector comes
    by, and with it all that its frames refer to. A refused message may be of megabytes: it must
    be none of that, and neither may the exception, whose own frames have it.
    """
    if isasyncgenfunction(method):

        async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
            try:
                enter(context)
                async with aclosing(method(await take(request, context), context)) as replies:
                    async for reply in replies:
                        yield reply
                return
            except _CANCELLED_BY_CALLER:
                raise
            except Exception as exc:
                answer = _abort_of(exc)
            del request
            await context.abort(*answer)

        return stream

    async def unary(request: Any, context: Context) -> Any:
        try:
            enter(context)
            return await method(await take(request, context), context)
        except _CANCELLED_BY_CALLER:
            raise
        except Exception as exc:
            answer = _abort_of(exc)
        del request
        await context.abort(*answer)

    return unary


def _abort_of(exc: Exception) -> _Abort:
    """Return the end of a call, with the table's code; log anything but a SaxError, which is a
    bug."""
    if isinstance(exc, SaxError):
        error = exc
    elif isinstance(exc, RecursionError):  # only what a caller sent can be nested that deeply
        logger.info("a request is refused: %s", exc)
        error = InvalidRequest("the request is nested too deeply: send one with fewer levels")
    else:
        logger.error("a servicer method failed", exc_info=exc)
        error = Internal("internal error; the server's log has the details")
    code = grpc.StatusCode[errors.meaning(error).grpc]
    text = _fit(without_long_words(error.text), _MAX_TEXT)
    return code, text, error_metadata(error)


def error_metadata(error: SaxError) -> tuple[tuple[str, str], ...]:
    """Return the trailing metadata from which `to_sax_error` rebuilds this error."""
    pairs = [(ERROR_KEY, errors.wire_name(error))]
    if error.param is not None:
        param = error.param[:LONGEST_QUOTE]
        pairs.append((PARAM_KEY, quote(_fit(param, _MAX_PARAM))))
    if error.retry_after_s is not None:
        pairs.append((RETRY_AFTER_KEY, repr(float(error.retry_after_s))))
    if error.need is not None:
        pairs.append((NEED_KEY, need.to_text(error.need)))
    return tuple(pairs)


def _fit(text: str, size: int) -> str:
    """Cut the text to fit a header; characters invalid in UTF-8 become "?"."""
    text = text[:size].encode(errors="replace").decode()
    while len(quote(text)) > size:
        text = text[: len(text) * 3 // 4]
    return text
