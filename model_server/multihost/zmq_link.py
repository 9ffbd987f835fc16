"""A pipeline link over ZeroMQ: a PULL socket for input, a PUSH socket to the next host.

A host binds its inlet before anything is loaded and offers the address, with a secret key, to the
previous host; callers carry the offer there. The link does not notice a dead neighbour: the hosts'
heartbeats do, and then someone closes the link.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import zmq

from model_server.multihost.link import LinkClosed, StageMessage
from sax.errors import LoadFailed

logger = logging.getLogger(__name__)

_AHEAD = 4  # messages in flight before a sender blocks; an engine has two steps in flight
_LARGEST = 2**28  # bytes of one array
_GLANCE_MS = 100  # between checks whether the link was closed
_DTYPES = frozenset({"float32", "int32"})


class _Header(msgspec.Struct, frozen=True, array_like=True):
    key: str
    number: int
    arrays: tuple[tuple[str, tuple[int, ...]], ...]  # dtype, shape


class ZmqLink:
    """Bound when created, connected once the next host's offer is known."""

    def __init__(self, name: str, *, bind: str = "*") -> None:
        """name: this host's address for the previous one; bind: interface to listen on.

        Raises LoadFailed.
        """
        self._key = secrets.token_hex(16)
        self._next_key: str | None = None
        self._closed = threading.Event()
        self._receiving, self._sending = threading.Lock(), threading.Lock()
        context = zmq.Context.instance()
        self._inlet, self._outlet = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        for socket in (self._inlet, self._outlet):
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.IPV6, ":" in name)
            socket.set_hwm(_AHEAD)
        self._inlet.set(zmq.MAXMSGSIZE, _LARGEST)
        try:
            port = self._inlet.bind_to_random_port(f"tcp://{bind}")
        except zmq.ZMQError as exc:
            self.close()
            raise LoadFailed(f"cannot listen on {bind} for the previous stage: {exc}") from exc
        host = f"[{name}]" if ":" in name else name
        self.offer = f"tcp://{host}:{port}/{self._key}"

    def connect(self, offer: str) -> None:
        """Connect to the next host's offer. Raises LoadFailed."""
        address, _, key = offer.rpartition("/")
        try:
            self._outlet.connect(address)
        except zmq.ZMQError as exc:
            raise LoadFailed(f"the next stage offers a bad address, {address}: {exc}") from exc
        self._next_key = key

    def send(self, message: StageMessage) -> None:
        assert self._next_key is not None, "send before connect"
        described = tuple((array.dtype.name, array.shape) for array in message.arrays)
        header = msgspec.msgpack.encode(_Header(self._next_key, message.number, described))
        # Not copied: ZeroMQ holds the arrays until they are sent.
        frames = [header, *map(np.ascontiguousarray, message.arrays)]
        with self._sending:
            self._wait(self._outlet, zmq.POLLOUT)
            self._outlet.send_multipart(frames, copy=False)

    def receive(self) -> StageMessage:
        with self._receiving:
            while True:
                self._wait(self._inlet, zmq.POLLIN)
                message = self._read(self._inlet.recv_multipart(copy=False))
                if message is not None:
                    return message
                logger.warning("ignored a message that is not from the previous stage")

    def close(self) -> None:
        """Idempotent; raises nothing."""
        self._closed.set()
        for lock, socket in ((self._receiving, self._inlet), (self._sending, self._outlet)):
            with lock:  # a waiting thread lets go within _GLANCE_MS
                socket.close()

    def _wait(self, socket: zmq.Socket[Any], event: int) -> None:
        while not self._closed.is_set():
            if socket.poll(_GLANCE_MS, event):
                return
        raise LinkClosed("the link to the other stages was closed")

    def _read(self, frames: Sequence[zmq.Frame]) -> StageMessage | None:
        """Decode a message; None if it is not from the previous host."""
        try:
            header = msgspec.msgpack.decode(frames[0].buffer, type=_Header)
        except msgspec.MsgspecError:
            return None
        if not secrets.compare_digest(header.key.encode(), self._key.encode()):
            return None
        parts = zip(header.arrays, frames[1:], strict=False)
        arrays = tuple(_array(dtype, shape, frame) for (dtype, shape), frame in parts)
        return StageMessage(header.number, arrays)


def _array(dtype: str, shape: tuple[int, ...], frame: zmq.Frame) -> np.ndarray:
    """View the frame as an array; empty if it does not match the header."""
    if dtype not in _DTYPES or len(frame.buffer) != math.prod(shape) * np.dtype(dtype).itemsize:
        return np.empty(0, np.uint8)
    return np.frombuffer(frame.buffer, dtype).reshape(shape)
