"""gRPC channels, calls, and errors that cross the wire intact.

A `SaxError` raised in a servicer reaches the caller as the same class with the same text.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from inspect import isasyncgenfunction
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import quote, unquote

import grpc
import grpc.aio
from google.protobuf.message import Message

from sax import errors, need
from sax.auth.authentication import NO_AUTHENTICATION, Authentication
from sax.auth.credentials import Credentials, call_metadata
from sax.errors import Internal, InvalidRequest, ReplicaLost, SaxError, UnsupportedParameter

logger = logging.getLogger(__name__)

Reply = TypeVar("Reply", bound=Message)
if TYPE_CHECKING:  # generic in the stubs only
    Handler = grpc.RpcMethodHandler[Any, Any]
    Context = grpc.aio.ServicerContext[Any, Any]

ERROR_KEY = "sax-error"
PARAM_KEY = "sax-param"
RETRY_AFTER_KEY = "sax-retry-after"
NEED_KEY = "sax-need"
# Percent-encoded bytes; gRPC refuses headers larger than about 8 KiB in total.
_MAX_TEXT = 4000
_MAX_PARAM = 400

_TOO_LARGE = "message larger than max"  # gRPC has no specific code for it

# A peer that is frozen or gone is noticed within the sum. gRPC answers pings on threads of its own,
# so a busy interpreter is not mistaken for one.
_PING_EVERY_MS = 1_500
_PING_TIMEOUT_MS = 3_000
_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *_OPTIONS,
    # Within 5 s end calls to a peer that is frozen, or vanished without closing its sockets. The
    # third option is what counts: without it gRPC waits a minute, whatever the second one says.
    ("grpc.keepalive_time_ms", _PING_EVERY_MS),
    ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", _PING_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    # Reconnect to a restarted peer within 2 s; gRPC's default limit is two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Each channel owns its connection, so it does not inherit another channel's backoff.
    ("grpc.use_local_subchannel_pool", 1),
    # Servers of a cell connect directly and ignore http_proxy.
    ("grpc.enable_http_proxy", 0),
)
# Without the last two, gRPC disconnects clients for their keepalive pings.
SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *_OPTIONS,
    ("grpc.so_reuseport", 0),  # a taken port is an error; do not share its requests
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", _PING_EVERY_MS // 3),
)


def open_channel(address: str) -> grpc.aio.Channel:
    """Open a channel to host:port; it connects on first use. The caller closes it.

    Encrypted if the environment says so. Raises InvalidRequest for unusable certificate files.
    """
    ours = Credentials.ours()
    encrypted = ours.channel()
    if encrypted is None:
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    options: list[tuple[str, int | str]] = [*CHANNEL_OPTIONS]
    if ours.tls_server_name:
        options.append(("grpc.ssl_target_name_override", ours.tls_server_name))
    return grpc.aio.secure_channel(address, encrypted, options=options)


async def call(
    channel: grpc.aio.Channel,
    path: str,
    request: Message,
    reply: type[Reply],
    *,
    peer: str,
    timeout_s: float | None,
    unavailable: type[SaxError] = ReplicaLost,
) -> Reply:
    """Make a unary call to `/package.Service/Method`. Raises SaxError naming `peer`."""
    method = channel.unary_unary(path, type(request).SerializeToString, reply.FromString)
    try:
        return await method(request, timeout=timeout_s, metadata=call_metadata())
    except grpc.aio.AioRpcError as exc:
        raise to_sax_error(exc, peer, unavailable=unavailable) from exc


async def call_stream(
    channel: grpc.aio.Channel,
    path: str,
    request: Message,
    reply: type[Reply],
    *,
    peer: str,
    timeout_s: float | None,
    unavailable: type[SaxError] = ReplicaLost,
) -> AsyncGenerator[Reply, None]:
    """Make a server-streaming call; closing the iterator cancels it. Raises SaxError."""
    method = channel.unary_stream(path, type(request).SerializeToString, reply.FromString)
    stream = method(request, timeout=timeout_s, metadata=call_metadata())
    try:
        async for message in stream:
            yield message
    except grpc.aio.AioRpcError as exc:
        raise to_sax_error(exc, peer, unavailable=unavailable) from exc
    except asyncio.CancelledError as exc:
        if is_cancelled_here():
            raise
        raise unavailable(f"{peer} ended the call") from exc
    finally:
        stream.cancel()


def is_cancelled_here() -> bool:
    """Return True if this task is being cancelled. A stream cancelled by the peer raises
    CancelledError too, but is a lost peer."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


# Errors: client side


def to_sax_error(
    err: grpc.aio.AioRpcError, peer: str, *, unavailable: type[SaxError] = ReplicaLost
) -> SaxError:
    """Rebuild the servicer's error; map an error of gRPC itself by its code.

    `peer` describes the other side; `unavailable` is the class to raise if it does not answer.
    """
    trailer = _trailer(err)
    details = err.details() or err.code().name
    if name := trailer.get(ERROR_KEY):
        retry_after = trailer.get(RETRY_AFTER_KEY)
        return errors.from_name(
            name,
            details,
            param=unquote(trailer[PARAM_KEY]) if PARAM_KEY in trailer else None,
            retry_after_s=float(retry_after) if retry_after else None,
            need=need.from_text(trailer[NEED_KEY]) if NEED_KEY in trailer else None,
        )
    # A call cancelled remotely means that the process is shutting down.
    if err.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return unavailable(f"{peer} does not answer ({details}); is it running?")
    if err.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in details:
        return InvalidRequest(
            f"{peer} does not accept a message of this size: {details}", param="request"
        )
    return error_class(err.code())(f"{peer}: {details}")


def error_class(code: grpc.StatusCode) -> type[SaxError]:
    """Return the most general class in the table for this code."""
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return UnsupportedParameter  # the peer is up but has no such method
    for cls, line in errors.TABLE.items():
        if line.grpc == code.name:
            return cls
    return Internal


def _trailer(err: grpc.aio.AioRpcError) -> dict[str, str]:
    pairs = err.trailing_metadata() or ()
    return {str(key): value for key, value in pairs if isinstance(value, str)}


# Errors: server side


def error_metadata(error: SaxError) -> tuple[tuple[str, str], ...]:
    """Return the trailing metadata from which `to_sax_error` rebuilds this error."""
    pairs = [(ERROR_KEY, errors.wire_name(error))]
    if error.param is not None:
        pairs.append((PARAM_KEY, quote(_fit(error.param, _MAX_PARAM))))
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


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Authenticates the caller of every method, and maps exceptions to the table's status codes."""

    def __init__(self, authentication: Authentication = NO_AUTHENTICATION) -> None:
        self._authentication = authentication

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        path = handler_call_details.method

        def enter(context: Context) -> None:
            self._authentication.enter(path, context)

        return handler and _guard_handler(handler, enter)


def _guard_handler(handler: Any, enter: Callable[[Context], None]) -> Handler:
    codec = {
        "request_deserializer": handler.request_deserializer,
        "response_serializer": handler.response_serializer,
    }
    if handler.unary_unary:
        return grpc.unary_unary_rpc_method_handler(_guard(handler.unary_unary, enter), **codec)
    if handler.stream_unary:
        return grpc.stream_unary_rpc_method_handler(_guard(handler.stream_unary, enter), **codec)
    if handler.unary_stream:
        return grpc.unary_stream_rpc_method_handler(_guard(handler.unary_stream, enter), **codec)
    return grpc.stream_stream_rpc_method_handler(_guard(handler.stream_stream, enter), **codec)


def _guard(
    method: Callable[[Any, Context], Any], enter: Callable[[Context], None]
) -> Callable[[Any, Context], Any]:
    """Wrap a servicer method, a coroutine or an async generator, mapping its exceptions."""
    if isasyncgenfunction(method):

        async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
            try:
                enter(context)
                async with aclosing(method(request, context)) as replies:
                    async for reply in replies:
                        yield reply
            except (grpc.aio.AbortError, asyncio.CancelledError, GeneratorExit):
                raise
            except Exception as exc:
                await _abort(context, exc)

        return stream

    async def unary(request: Any, context: Context) -> Any:
        try:
            enter(context)
            return await method(request, context)
        except (grpc.aio.AbortError, asyncio.CancelledError):
            raise
        except Exception as exc:
            await _abort(context, exc)

    return unary


async def _abort(context: Context, exc: Exception) -> NoReturn:
    """End the call with the table's code; log anything but a SaxError, which is a bug."""
    if isinstance(exc, SaxError):
        error = exc
    else:
        logger.error("a servicer method failed", exc_info=exc)
        error = Internal("internal error; the server's log has the details")
    code = grpc.StatusCode[errors.meaning(error).grpc]
    await context.abort(code, _fit(error.text, _MAX_TEXT), error_metadata(error))
