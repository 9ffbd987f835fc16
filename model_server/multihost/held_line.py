"""A line to another host that stays up when its far end dies.

jax ends a process at once when its coordination service hangs up, which lives in the primary's
process: before anybody could say who is lost. So the other hosts speak to it through themselves;
when the primary is gone they hear nothing, and the replica's own heartbeat, which knows names,
is the first to notice. Knows nothing of what goes over the line.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

_CHUNK = 2**16
_AGAIN_S = 0.1


def hold_line(host: str, port: int, timeout_s: float) -> str:
    """An address of this process that leads there, for as long as it lives. Raises OSError.

    timeout_s: how long a connection waits for somebody to listen there.
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
    """Carry what this process says, until it hangs up; what the far end says comes back."""
    with near, suppress(OSError), _connect(there, deadline_s) as far:
        threading.Thread(target=_bring_back, args=(far, near), name="line", daemon=True).start()
        while data := near.recv(_CHUNK):
            with suppress(OSError):  # nobody is there any more: as if it were still on its way
                far.sendall(data)
        far.shutdown(socket.SHUT_RDWR)


def _bring_back(far: socket.socket, near: socket.socket) -> None:
    with suppress(OSError):
        while data := far.recv(_CHUNK):
            near.sendall(data)


def _connect(there: tuple[str, int], deadline_s: float) -> socket.socket:
    """Raises OSError when nobody listens there in time."""
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
