"""Relay to jax's coordination service that stays up when the primary dies.

jax kills a process as soon as the coordination service, which lives in the primary's process, hangs
up, before anyone can say which host is lost. So secondaries reach it through a local relay. When
the primary is gone they hear nothing, and the replica's own heartbeat, which knows host names,
notices first.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

_CHUNK = 2**16
_AGAIN_S = 0.1


def hold_line(host: str, port: int, timeout_s: float) -> str:
    """Return a local address that relays there for the life of this process. Raises OSError.

    timeout_s: how long a connection waits for a listener there.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    work = threading.Thread(
        target=_accept, args=(listener, (host, port), timeout_s), name="line", daemon=True
    )
    work.start()
    return f"127.0.0.1:{listener.getsockname()[1]}"


def _accept(listener: socket.socket, there: tuple[str, int], timeout_s: float) -> None:
    while True:
        near, _ = listener.accept()
        args = (near, there, time.monotonic() + timeout_s)
        threading.Thread(target=_lead, args=args, name="line", daemon=True).start()


def _lead(near: socket.socket, there: tuple[str, int], deadline_s: float) -> None:
    """Relay both directions until the near end hangs up."""
    with near, suppress(OSError), _connect(there, deadline_s) as far:
        threading.Thread(target=_bring_back, args=(far, near), name="line", daemon=True).start()
        while data := near.recv(_CHUNK):
            with suppress(OSError):  # far end is gone: pretend that the data is in flight
                far.sendall(data)
        far.shutdown(socket.SHUT_RDWR)


def _bring_back(far: socket.socket, near: socket.socket) -> None:
    with suppress(OSError):
        while data := far.recv(_CHUNK):
            near.sendall(data)


def _connect(there: tuple[str, int], deadline_s: float) -> socket.socket:
    """Connect, retrying until the deadline. Raises OSError."""
    while True:
        try:
            found = socket.create_connection(there, timeout=5)
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_AGAIN_S)
        else:
            found.settimeout(None)
            return found
