"""This process's end of `jax.experimental.transfer`: one server, and connections to others.

Starts with the first model that takes part.

Findings (jaxlib 0.10, CPU): deleting an offered array frees it at once, even in the middle of a
pull, and the puller gets an error. Pulling a key that is not offered, or from an address where
nothing listens, waits forever. The timeouts of its own methods are checked only when something else
happens. So offers are ended by deleting arrays, and pulls are polled.
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
        """host: this machine's name or address for the others."""
        self._host = host
        self._lock = threading.Lock()
        self._server: Any = None
        self._connections: dict[str, Any] = {}

    @property
    def address(self) -> str:
        """host:port"""
        return self._started().address()

    def offer(self, key: int, arrays: Sequence[jax.Array]) -> None:
        """Let one other process pull the arrays, once; delete them to withdraw the offer."""
        self._started().await_pull(key, list(arrays))

    def pull(
        self, address: str, key: int, shapes: Sequence[jax.ShapeDtypeStruct]
    ) -> list[jax.Array]:
        """Return arrays that arrive later: poll `is_ready`."""
        with self._lock:
            connection = self._connections.get(address)
        if connection is None:
            connection = self._started().connect(address)
            with self._lock:
                self._connections[address] = connection
        return connection.pull(key, list(shapes))

    def lose(self, address: str) -> None:
        """Drop the connection; the next pull from there makes a new one."""
        with self._lock:
            self._connections.pop(address, None)

    def _started(self) -> Any:
        with self._lock:
            if self._server is None:
                host = socket.gethostbyname(self._host)
                client = jax.local_devices()[0].client
                self._server = transfer.start_transfer_server(client, f"{host}:0", [f"{host}:0"])
            return self._server
