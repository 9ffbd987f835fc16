"""Layout of a local cell: its processes with their flags, ports and folders.

Pure: starts nothing (`sax.cli.local.supervisor` does); servers are known by their command lines.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from sax.auth.security import Security
from sax.auth.token_file import tokens_given
from sax.cli.local.child import Child, Port
from sax.cli.local.gateway_options import value_of
from sax.cli.local.server_plan import ServerPlan, plan_servers
from sax.config import (
    ADMIN_PORT,
    ADMIN_STATUS_PORT,
    GATEWAY_PORT,
    GROUP_PORT,
    MODEL_METRICS_PORT,
    MODEL_PORT,
    PATHWAYS_PORT,
)
from sax.errors import InvalidRequest
from sax.names import CellId

# The islands of a local cell: the processes of a Pathways deployment on this machine.
#
# A resource manager, one worker per island and a proxy server, at ports that follow each other; the
# model servers compute through the proxy server.

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


ADMIN = "admin server"
GATEWAY = "gateway"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPlan:
    """A cell on this machine. Ports are TCP; folders are created when it starts."""

    folder: Path
    compile_cache: Path
    cell: str = "/sax/test"
    host: str = "127.0.0.1"  # where the gateway listens
    admin_port: int = ADMIN_PORT
    model_port: int = MODEL_PORT
    gateway_port: int = GATEWAY_PORT
    status_port: int = ADMIN_STATUS_PORT
    metrics_port: int = MODEL_METRICS_PORT
    group_port: int = GROUP_PORT  # where the hosts of the first model server meet
    servers: int = 1  # model servers
    hosts: int = 1  # processes per model server
    devices_per_host: int | None = None  # None: as many as it has
    islands: int = 0  # that the model servers compute on; 0: on their own devices
    devices_per_island: int = 1
    pathways_port: int = PATHWAYS_PORT  # of the proxy server, first of the islands' ports
    memory: int = 0  # bytes of this machine, shared by all processes; 0: sets no limit
    saxml_generation: int = 2
    imports: tuple[str, ...] = ()  # user modules that register models
    tokens: Path | None = None  # None: authentication is off
    admin_acl: str = ""
    model_server_flags: tuple[str, ...] = ()
    admin_flags: tuple[str, ...] = ()
    gateway_flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        CellId.parse(self.cell)
        _check_devices(self.devices_per_host)
        self._check_islands()
        _check_different(self.ports)
        Security(
            tokens=str(self.tokens or ""),
            token_variable=tokens_given(""),
            admin_acl=self.admin_acl,
        )

    @property
    def closed(self) -> bool:
        """True if callers need a token."""
        return tokens_given(str(self.tokens or ""))

    @property
    def admin_address(self) -> str:
        return f"127.0.0.1:{self.admin_port}"

    @property
    def gateway_host(self) -> str:
        """Address at which a client on this machine reaches the gateway."""
        return "127.0.0.1" if self.host in ("0.0.0.0", "::", "") else self.host

    @property
    def gateway_url(self) -> str:
        scheme = "https" if value_of(self.gateway_flags, "tls_cert") else "http"
        return f"{scheme}://{self.gateway_host}:{self.gateway_port}"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def ports(self) -> tuple[Port, ...]:
        return (
            Port(self.admin_port, ADMIN, "--admin-port"),
            Port(self.status_port, "admin status page", "--status-port"),
            *(self.island_plan.ports if self.island_plan else ()),
            *(port for server in self.model_servers for port in server.ports),
            Port(self.gateway_port, GATEWAY, "--port", self.host),
        )

    @property
    def model_servers(self) -> tuple[ServerPlan, ...]:
        return plan_servers(
            servers=self.servers,
            hosts=self.hosts,
            model_port=self.model_port,
            metrics_port=self.metrics_port,
            group_port=self.group_port,
            logs=self.logs,
        )

    @property
    def island_plan(self) -> IslandsPlan | None:
        """None: the model servers compute on their own devices."""
        if self.islands == 0:
            return None
        return IslandsPlan(
            count=self.islands,
            devices=self.devices_per_island,
            port=self.pathways_port,
            memory=self.memory,
            checkpoint_roots=_checkpoint_roots(self.model_server_flags),
            compile_cache=self.compile_cache,
            logs=self.logs,
        )

    @property
    def children(self) -> tuple[Child, ...]:
        """All processes in start order; they drain in reverse."""
        shared, islands = self._model_server_flags(), self.island_plan
        environ = islands.environ if islands else ()
        servers = (
            replace(child, environ=environ)
            for server in self.model_servers
            for child in server.children(shared, self.model_server_flags)
        )
        return (
            self._admin(),
            *(islands.children if islands else ()),
            *servers,
            self._gateway(),
        )

    def _admin(self) -> Child:
        flags = (
            f"--port={self.admin_port}",
            f"--sax_cell={self.cell}",
            f"--fs_root={(self.folder / 'state').absolute()}",
            f"--status_port={self.status_port}",
            *self.admin_flags,
            *self._tokens(),
            *self._admin_acl(),
        )
        return Child(ADMIN, "admin_server", flags, self.logs / "admin_server.log")

    def _model_server_flags(self) -> tuple[str, ...]:
        return (
            f"--sax_cell={self.cell}",
            f"--admin={self.admin_address}",
            f"--jax_cache_dir={self.compile_cache.absolute()}",
            *self._share(),
            *(f"--import={module}" for module in self.imports),
            *self._tokens(),
            *self._admin_acl(),
        )

    def _share(self) -> tuple[str, ...]:
        """Flags that limit each process to its share: by default it takes the whole machine."""
        if self.islands:
            return ()  # the islands have the memory
        processes = self.servers * self.hosts
        devices, memory = self.devices_per_host, self.memory
        return (
            *((f"--cpu_devices={devices}",) if devices else ()),
            *((f"--memory_limit_bytes={memory // processes}",) if processes > 1 and memory else ()),
        )

    def _check_islands(self) -> None:
        """Raises InvalidRequest."""
        alone = self.hosts == 1 and self.devices_per_host is None
        if self.islands and not alone:
            raise InvalidRequest(
                "--islands goes without --hosts and --devices-per-host: a model server is one "
                "process, which computes on the islands; use --devices-per-island",
                param="--islands",
            )

    def _gateway(self) -> Child:
        flags = (
            f"--port={self.gateway_port}",
            f"--host={self.host}",
            f"--admin={self.admin_address}",
            f"--saxml_generation={self.saxml_generation}",
            f"--files={(self.folder / 'files').absolute()}",
            *self._tokens(),
            *self.gateway_flags,
        )
        # It has nothing to ask before, and on two cores it would take one from the model server.
        log, after = self.logs / "http_gateway.log", self.admin_port
        return Child(GATEWAY, "http_gateway", flags, log, after=after)

    def _tokens(self) -> tuple[str, ...]:
        return (f"--tokens={self.tokens.absolute()}",) if self.tokens else ()

    def _admin_acl(self) -> tuple[str, ...]:
        return (f"--admin_acl={self.admin_acl}",) if self.admin_acl else ()


def default_compile_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the user's folder for compiled steps, so that a new cell folder starts warm."""
    base = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "sax" / "compiled"


def _check_devices(devices_per_host: int | None) -> None:
    if devices_per_host is not None and devices_per_host < 1:
        raise InvalidRequest(
            f"--devices-per-host is {devices_per_host}: it must be above 0",
            param="--devices-per-host",
        )


def _check_different(ports: tuple[Port, ...]) -> None:
    owners: dict[int, Port] = {}
    for port in ports:
        other = owners.setdefault(port.number, port)
        if other is not port:
            raise InvalidRequest(
                f"port {port.number} is used twice: by {other.owner} ({other.flag}) and "
                f"by {port.owner} ({port.flag}); change one of them",
                param=port.flag,
            )
        if not 0 < port.number < 65536:
            raise InvalidRequest(
                f"{port.number} ({port.owner}) is not a valid port: choose another one with "
                f"{port.flag}",
                param=port.flag,
            )


def check_ports(ports: tuple[Port, ...]) -> None:
    """Raise InvalidRequest for the first port that is already in use."""
    for port in ports:
        if is_taken(port.host, port.number):
            raise InvalidRequest(
                f"port {port.number} ({port.owner}) is already in use: stop the process that "
                f"uses it, or choose another port with {port.flag}"
            )


def is_taken(host: str, number: int) -> bool:
    """Return True if a process of this machine listens at a port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the servers do: without it a port in TIME_WAIT would look taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, number))
        except OSError:
            return True
    return False


def _checkpoint_roots(flags: Sequence[str]) -> tuple[str, ...]:
    """Return the places that flags let a model server read below; without any, all of them."""
    given = ""
    for flag, following in zip_longest(flags, flags[1:], fillvalue=""):
        name, equals, value = flag.partition("=")
        if name == "--checkpoint_roots":
            given = value if equals else following
    return tuple(root for root in given.split(",") if root) or ("/",)
