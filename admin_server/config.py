"""What one admin server process was told: built once from its flags, never changed."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from sax.config import ADMIN_PORT, ADMIN_STATUS_PORT
from sax.names import CellId
from sax.security import OPEN_TO_ALL, Security

_ANY = ("0.0.0.0", "::", "[::]", "")
NO_STATUS_PAGE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig:
    """The flags of `python -m admin_server`."""

    cell: CellId = CellId("test")
    host: str = "127.0.0.1"
    port: int = ADMIN_PORT  # 0: any free one
    status_port: int = ADMIN_STATUS_PORT  # 0: any free one; -1: no status page
    fs_root: str = ".sax"  # where the records are: a folder or a URL
    sax_root: str | None = None  # where location.proto is written
    advertise: str | None = None  # the host that others reach this one by
    snapshot_every: int = 100  # records
    security: Security = OPEN_TO_ALL

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ValueError(f"--port {self.port}: write 0 (any free port) to 65535")
        if not NO_STATUS_PAGE <= self.status_port < 65536:
            raise ValueError(
                f"--status_port {self.status_port}: write -1 (none), 0 (any free port) to 65535"
            )
        if self.snapshot_every < 1:
            raise ValueError(f"--snapshot_every {self.snapshot_every}: write 1 or more")

    @property
    def advertised_host(self) -> str:
        """The host of the address in location.proto."""
        if self.advertise:
            return self.advertise
        return socket.gethostbyname(socket.gethostname()) if self.host in _ANY else self.host
