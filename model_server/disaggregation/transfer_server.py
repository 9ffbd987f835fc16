"""This process's end of `jax.experimental.transfer`: one server, and connections to others.

Started by the first model that takes part. Knows nothing of models or pages.

What was found out about it (jaxlib 0.10, CPU): an offered array that is deleted is free at once,
also in the middle of a pull, and whoever pulls it gets an error; a pull of a key that is not
offered waits for ever, and so does one at an address where nobody listens; the timeouts of its own
methods are looked at only when something else happens. So offers are ended by deleting arrays and
pulls are polled.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental import transfer


class TransferServer:
    """Any thread may call it."""

    def __init__(self, host: str) -> None:
        """`host`: as the others reach this machine."""
        self._host = host
        self._lock = threading.Lock()
        self._server: Any = None
        self._connections: dict[str, Any] = {}

    @property
    def address(self) -> str:
        """host:port"""
        return self._started().address()

    def offer(self, key: int, arrays: Sequence[jax.Array]) -> None:
        """Let one other process pull them, once; deleting them is what ends it before."""
        self._started().await_pull(key, list(arrays))

    def pull(
        self, address: str, key: int, shapes: Sequence[jax.ShapeDtypeStruct]
    ) -> list[jax.Array]:
        """Arrays to come: poll `is_ready`."""
        with self._lock:
            connection = self._connections.get(address)
        if connection is None:
            connection = self._started().connect(address)
            with self._lock:
                self._connections[address] = connection
        return connection.pull(key, list(shapes))

    def lose(self, address: str) -> None:
        """The next pull from there makes a new connection."""
        with self._lock:
            self._connections.pop(address, None)

    def _started(self) -> Any:
        with self._lock:
            if self._server is None:
                host = socket.gethostbyname(self._host)
                client = jax.local_devices()[0].client
                self._server = transfer.start_transfer_server(client, f"{host}:0", [f"{host}:0"])
            return self._server
