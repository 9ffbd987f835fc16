"""gRPC channels, calls, and errors that cross the wire intact.

A `SaxError` raised in a servicer reaches the caller as the same class with the same text; the
servers' half is `sax.wire.interceptor`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar
from urllib.parse import unquote

import grpc
import grpc.aio
from google.protobuf.message import Message

from sax import errors, need
from sax.auth.credentials import Credentials, call_metadata
from sax.config import ADMIN_PORT
from sax.errors import Internal, InvalidRequest, ReplicaLost, SaxError, UnsupportedParameter

Reply = TypeVar("Reply", bound=Message)

ERROR_KEY = "sax-error"
PARAM_KEY = "sax-param"
RETRY_AFTER_KEY = "sax-retry-after"
NEED_KEY = "sax-need"

_OTHER_PROTOCOL = "http1.x server"  # likewise
_TOO_LARGE = "message larger than max"  # gRPC has no specific code for it

# The largest request that every server takes: a prompt of ten million tokens, each of them at most
# three bytes. gRPC looks at the announced length, before it reads the message.
REQUEST_BYTES = 32 << 20
# The largest reply that a client takes: a custom method may answer with whole images or arrays.
REPLY_BYTES = 1 << 30

# A peer that is frozen or gone is noticed within the sum. gRPC answers pings on threads of its own,
# so a busy interpreter is not mistaken for one.
_PING_EVERY_MS = 1_500
_PING_TIMEOUT_MS = 3_000
# The receiver bounds a message; a second limit at the sender would only have to agree with it.
_SEND_ANY: tuple[str, int] = ("grpc.max_send_message_length", -1)
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    _SEND_ANY,
    ("grpc.max_receive_message_length", REPLY_BYTES),
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


def server_options(request_bytes: int = REQUEST_BYTES) -> tuple[tuple[str, int], ...]:
    """Return the options of a server that takes requests of at most so many bytes."""
    return (
        _SEND_ANY,
        ("grpc.max_receive_message_length", request_bytes),
        ("grpc.so_reuseport", 0),  # a taken port is an error; do not share its requests
        # Without these two, gRPC disconnects clients for their keepalive pings.
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
    if err.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED) or _crossed(err):
        if _OTHER_PROTOCOL in details:
            return unavailable(
                f"{peer} speaks HTTP, and not gRPC: is that the port of a gateway or a status "
                f"page? An admin server's is {ADMIN_PORT} unless it was started with another"
            )
        return unavailable(f"{peer} does not answer ({details}); is it running?")
    if err.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in details:
        return _too_large(details, peer)
    return error_class(err.code())(f"{peer}: {details}")


def _crossed(err: grpc.aio.AioRpcError) -> bool:
    """Tell whether a message was written while the peer ended the call.

    grpc.aio then reports the failed write, not the status that was on its way.
    """
    return err.code() is grpc.StatusCode.INTERNAL and err.details() == "Internal error from Core"


def _too_large(details: str, peer: str) -> InvalidRequest:
    """Name the side whose limit it is; gRPC says it, and both sizes, in words only."""
    if details.startswith("CLIENT"):
        text = f"the reply of {peer} is larger than this client takes: ask for less at once"
    else:
        text = (
            f"{peer} does not accept a message of this size: send less, or ask its operator for a "
            "larger limit (model servers: --max_message_bytes)"
        )
    return InvalidRequest(f"{text} ({details})", param="request")


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
