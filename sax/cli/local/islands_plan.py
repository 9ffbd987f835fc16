"""The islands of a local cell: the processes of a Pathways deployment on this machine.

A resource manager, one worker per island and a proxy server, at ports that follow each other; the
model servers compute through the proxy server. Pure, like `cell_plan`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sax.cli.local.child import Child, Port
from sax.errors import InvalidRequest

_MODULE = "model_server.pathways"
_FLAG = "--pathways-port"
MANAGER, PROXY = "resource manager", "proxy server"
# Longer than a busy laptop keeps a process waiting; one that dies is known by its connection.
_LEASE_S = 10
_FIRST_WORKER = 5  # ports above the first


@dataclass(frozen=True, slots=True, kw_only=True)
class IslandsPlan:
    """Islands of simulated CPU devices."""

    count: int
    devices: int  # of each
    port: int  # of the proxy server; the others follow
    memory: int  # bytes of this machine, shared by the islands; 0: sets no limit
    checkpoint_roots: tuple[str, ...]  # below which workers may read
    compile_cache: Path
    logs: Path

    def __post_init__(self) -> None:
        for flag, value in (("--islands", self.count), ("--devices-per-island", self.devices)):
            if value < 1:
                raise InvalidRequest(f"{flag} is {value}: it must be above 0", param=flag)

    @property
    def page_url(self) -> str:
        """The resource manager's status page."""
        return f"http://127.0.0.1:{self.port + 2}/"

    @property
    def ports(self) -> tuple[Port, ...]:
        named = ((0, PROXY), (1, MANAGER), (2, f"{MANAGER}'s page"))
        workers = ((_FIRST_WORKER + island, worker_name(island)) for island in range(self.count))
        return tuple(Port(self.port + above, name, _FLAG) for above, name in (*named, *workers))

    @property
    def environ(self) -> tuple[tuple[str, str], ...]:
        """Variables of a process that computes on the islands."""
        target = f"grpc://127.0.0.1:{self.port}"
        return (("JAX_PLATFORMS", "proxy"), ("JAX_BACKEND_TARGET", target))

    @property
    def children(self) -> tuple[Child, ...]:
        """All processes in start order; they drain in reverse."""
        workers = (self._worker(island) for island in range(self.count))
        return (self._manager(), *workers, self._proxy())

    def _manager(self) -> Child:
        return self._child(
            MANAGER,
            "resource_manager",
            f"--server_port={self.port + 1}",
            f"--status_port={self.port + 2}",
            f"--instance_count={self.count}",
            f"--instance_type=cpu:{self.devices}",
            f"--lease_s={_LEASE_S}",
        )

    def _worker(self, island: int) -> Child:
        memory = self.memory // self.count
        return self._child(
            worker_name(island),
            "worker",
            f"--server_port={self.port + _FIRST_WORKER + island}",
            f"--resource_manager_address=127.0.0.1:{self.port + 1}",
            f"--island={island}",
            *(f"--checkpoint_root={root}" for root in self.checkpoint_roots),
            *((f"--memory_limit_bytes={memory}",) if memory else ()),
        )

    def _proxy(self) -> Child:
        return self._child(
            PROXY,
            "proxy_server",
            f"--server_port={self.port}",
            f"--resource_manager_address=127.0.0.1:{self.port + 1}",
        )

    def _child(self, name: str, role: str, *flags: str) -> Child:
        log = self.logs / f"{name.replace(' ', '_')}.log"
        environ = (("JAX_COMPILATION_CACHE_DIR", str(self.compile_cache.absolute())),)
        return Child(name, _MODULE, (f"--node_type={role}", *flags), log, environ=environ)


def worker_name(island: int) -> str:
    return f"worker of island {island}"
