"""Configuration of one admin server process: built once from its flags, never changed."""

from __future__ import annotations

import math
import socket
from dataclasses import dataclass

from admin_server.assignment.autoscaler import ScalingTiming
from sax.auth.security import OPEN_TO_ALL, Security
from sax.config import ADMIN_PORT, ADMIN_STATUS_PORT
from sax.flags.process_logs import ProcessLogs
from sax.names import CellId
from sax.storage.object_store import TIMEOUT_S

_ANY = ("0.0.0.0", "::", "[::]", "")
NO_STATUS_PAGE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig:
    """The flags of `python -m admin_server`."""

    cell: CellId = CellId("test")
    host: str = "127.0.0.1"
    port: int = ADMIN_PORT  # 0: any free one
    status_port: int = ADMIN_STATUS_PORT  # 0: any free one; -1: no status page
    fs_root: str = ".sax"  # where the log is stored: a folder or a URL
    sax_root: str | None = None  # where location.proto is written
    advertise: str | None = None  # host under which others reach this server
    snapshot_every: int = 100  # records
    beat_s: float = 1.0  # between two beats of the leader
    store_timeout_s: float = TIMEOUT_S  # a change the store delays longer is refused
    scaling: ScalingTiming = ScalingTiming()
    security: Security = OPEN_TO_ALL
    kubernetes: str | None = None  # folder of model server templates; None: no Kubernetes
    kubernetes_namespace: str | None = None  # None: the namespace of this process
    kubernetes_limit: int = 64  # maximum objects of this cell
    experimental_assigner: bool = False  # Saxml's; only told of
    logs: ProcessLogs = ProcessLogs()

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ValueError(f"--port {self.port}: use 0 (any free port) to 65535")
        if not NO_STATUS_PAGE <= self.status_port < 65536:
            raise ValueError(
                f"--status_port {self.status_port}: use -1 (none), 0 (any free port) to 65535"
            )
        if self.snapshot_every < 1:
            raise ValueError(f"--snapshot_every {self.snapshot_every}: use 1 or more")
        if not 0 <= self.kubernetes_limit <= 10_000:
            raise ValueError(f"--kubernetes_limit {self.kubernetes_limit}: use 0 to 10000")
        if self.kubernetes is None and self.kubernetes_namespace:
            raise ValueError("--kubernetes_namespace has no effect without --kubernetes FOLDER")
        if not 0.05 <= self.beat_s <= 60:
            raise ValueError(f"--beat_s {self.beat_s:g}: use 0.05 to 60 seconds")
        if not 0.1 <= self.store_timeout_s <= 600:
            raise ValueError(f"--store_timeout_s {self.store_timeout_s:g}: use 0.1 to 600 seconds")
        for flag, seconds in (
            ("--scale_up_s", self.scaling.up_s),
            ("--scale_down_s", self.scaling.down_s),
            ("--scale_idle_s", self.scaling.idle_s),
        ):
            if not (math.isfinite(seconds) and seconds >= 0):
                raise ValueError(f"{flag} {seconds:g}: use 0 seconds or more")

    @property
    def advertised_host(self) -> str:
        """The host of the address in location.proto."""
        if self.advertise:
            host = self.advertise
            return f"[{host}]" if ":" in host and not host.startswith("[") else host
        return socket.gethostbyname(socket.gethostname()) if self.host in _ANY else self.host
