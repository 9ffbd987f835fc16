"""Flags of all roles, exactly as the tutorial and the PathwaysJob controller pass them.

Flags that begin with `--xla_` are options for the compiler of the workers. Environment variables
stand in for flags where the controller sets them. Raises InvalidRequest naming the flag at fault.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from model_server.config import check_root
from model_server.pathways.link.safety import TRUST_FLAG, TRUST_VARIABLE, LinkSafety, is_loopback
from sax.config import check_address
from sax.errors import InvalidRequest

MANAGER, WORKER, PROXY, LOCAL = "resource_manager", "worker", "proxy_server", "local"
SIDECAR = "sidecar"
ROLES = (MANAGER, WORKER, SIDECAR, PROXY, LOCAL)
PORTS = {MANAGER: 29001, WORKER: 29005, SIDECAR: 50051, PROXY: 29000, LOCAL: 29000}
_UNUSED = ("virtual_slices", "enable_metrics_collection")
_CODE = "--colocated_python"
_TRUE = ("1", "true", "yes")


@dataclass(frozen=True, slots=True, kw_only=True)
class PathwaysFlags:
    """Flags of one process."""

    role: str
    host: str  # to listen on
    port: int
    manager: str = ""  # host:port
    advertised: str = ""  # host name or address where others reach this worker
    instance_type: str = ""
    instance_count: int = 1
    island: int | None = None
    island_host: int = 0
    island_hosts: int = 1
    status_port: int | None = None
    lease_s: float = 2.0
    host_buffer_bytes: int = 16 << 30
    memory_limit_bytes: int = 0  # of a worker on a CPU; 0: the machine's memory
    elastic_islands: int = 0  # the proxy may start with so many islands fewer
    checkpoint_roots: tuple[str, ...] = ()  # of a worker: what it may read for clients
    takes_functions: bool = False  # of a proxy server: pickled ones of clients
    sidecar: str = ""  # host:port of a worker's; "": functions are refused
    compile_options: Mapping[str, str] = field(default_factory=dict[str, str])
    unused: Sequence[str] = ()  # given for Google's programs; ours has nothing like it
    safety: LinkSafety = LinkSafety()


def parse(arguments: Sequence[str], environ: Mapping[str, str]) -> PathwaysFlags:
    """Return the flags of a process. Raises InvalidRequest; SystemExit for --help."""
    compile_options, rest = _split(arguments)
    found, unknown = _parser().parse_known_args(rest)
    if unknown:
        raise InvalidRequest(
            f"{' '.join(unknown)}: no flag of a Pathways role; see "
            "`python -m model_server.pathways --help`",
            param=unknown[0].lstrip("-"),
        )
    trusted = found.trust_network or environ.get(TRUST_VARIABLE, "").lower() in _TRUE
    safety = LinkSafety(
        tls_cert=found.tls_cert, tls_key=found.tls_key, tls_ca=found.tls_ca, trusted=trusted
    )
    role: str = found.node_type
    made = PathwaysFlags(
        role=role,
        host=found.host if found.host is not None else _host(role, trusted, safety),
        port=PORTS[role] if found.server_port is None else found.server_port,
        manager=_manager(role, found.resource_manager_address, environ),
        advertised=found.advertise or environ.get("HOST_ADDRESS", ""),
        instance_type=found.instance_type,
        instance_count=_count(found.instance_count, "instance_count"),
        island=_island(found.island, environ),
        island_host=_number(found.island_host, environ, "TPU_WORKER_ID", 0),
        island_hosts=_hosts(found.island_hosts, environ),
        status_port=found.status_port,
        lease_s=found.lease_s,
        host_buffer_bytes=found.host_buffer_bytes,
        memory_limit_bytes=found.memory_limit_bytes,
        elastic_islands=found.num_elastic_slices,
        checkpoint_roots=_roots(found.checkpoint_root),
        takes_functions=bool(found.sidecar_name),
        sidecar=_sidecar(found.sidecar_address, safety),
        compile_options=compile_options,
        unused=[f"--{name}" for name in _UNUSED if getattr(found, name)],
        safety=safety,
    )
    safety.check(made.host, "--host")
    if role == SIDECAR:
        _check_code(found.colocated_python, made.host, safety)
    return made


def _split(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Part compiler options from the flags of the role."""
    options: dict[str, str] = {}
    rest: list[str] = []
    for argument in arguments:
        if argument.startswith("--xla_"):
            name, equals, value = argument[2:].partition("=")
            options[name] = value if equals else "true"
        else:
            rest.append(argument)
    return options, rest


def _host(role: str, trusted: bool, safety: LinkSafety) -> str:
    beyond = safety.mutual or (trusted and role != SIDECAR)
    return "0.0.0.0" if beyond else "127.0.0.1"


def _manager(role: str, given: str, environ: Mapping[str, str]) -> str:
    """Return the resource manager's address, from the flag or PATHWAYS_HEAD."""
    if role in (MANAGER, LOCAL, SIDECAR):
        return ""
    head = environ.get("PATHWAYS_HEAD", "")
    address = given or (f"{head}:{PORTS[MANAGER]}" if head else "")
    if not address:
        raise InvalidRequest(
            f"--resource_manager_address is missing: a {role} needs host:port of the resource "
            f"manager, usually at port {PORTS[MANAGER]} (or its host name in PATHWAYS_HEAD)",
            param="resource_manager_address",
        )
    return check_address(address, "--resource_manager_address")


def _island(given: int | None, environ: Mapping[str, str]) -> int | None:
    text = environ.get("MEGASCALE_SLICE_ID", "")
    return given if given is not None else _whole(text, "MEGASCALE_SLICE_ID") if text else None


def _hosts(given: int | None, environ: Mapping[str, str]) -> int:
    names = environ.get("TPU_WORKER_HOSTNAMES", "")
    return _count(given or (len(names.split(",")) if names else 1), "island_hosts")


def _number(given: int | None, environ: Mapping[str, str], name: str, default: int) -> int:
    if given is not None:
        return given
    return _whole(environ[name], name) if environ.get(name) else default


def _whole(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise InvalidRequest(f"{name}={text!r} is no number", param=name)
    return int(text)


def _count(value: int, name: str) -> int:
    if value < 1:
        raise InvalidRequest(f"--{name}={value}: use 1 or more", param=name)
    return value


def _sidecar(address: str, safety: LinkSafety) -> str:
    """Return the address of a worker's sidecar. Raises InvalidRequest if code would be in clear."""
    if not address:
        return ""
    check_address(address, "--sidecar_address")
    if not (is_loopback(address.rpartition(":")[0]) or safety.mutual):
        raise InvalidRequest(
            f"--sidecar_address={address}: a sidecar runs code, so it is on the worker's machine, "
            "at 127.0.0.1, or both have --tls_cert, --tls_key and --tls_ca",
            param="sidecar_address",
        )
    return address


def _check_code(asked: bool, host: str, safety: LinkSafety) -> None:
    """Raise InvalidRequest for a sidecar that was not meant to run code, or not from there."""
    if not asked:
        raise InvalidRequest(
            f"a sidecar runs any code that clients of the proxy server send: say {_CODE} if they "
            "may",
            param=_CODE.lstrip("-"),
        )
    if not (is_loopback(host) or safety.mutual):
        raise InvalidRequest(
            f"--host={host}: a sidecar runs code for its worker, on the same machine: use "
            f"127.0.0.1, or --tls_cert, --tls_key and --tls_ca; {TRUST_FLAG} is not enough",
            param="host",
        )


def _roots(given: Sequence[str]) -> tuple[str, ...]:
    try:
        for root in given:
            check_root(root, "--checkpoint_root")
    except ValueError as exc:
        raise InvalidRequest(str(exc), param="checkpoint_root") from exc
    return tuple(given)


class _Parser(argparse.ArgumentParser):
    """Refuses with our errors."""

    def error(self, message: str) -> None:  # type: ignore[override]
        raise InvalidRequest(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m model_server.pathways", allow_abbrev=False)
    add = parser.add_argument
    add("--node_type", choices=ROLES, required=True, help="the role of this process")
    add("--server_port", type=int, help="port to serve on (29000 proxy, 29001 manager, 29005)")
    add("--host", help="address to serve on (default 127.0.0.1; all, with TLS or trust)")
    add("--resource_manager_address", default="", help="host:port, for workers and proxy servers")
    add("--instance_count", type=int, default=1, help="islands that there should be")
    add("--instance_type", default="cpu:1", help="devices of an island: cpu:2, tpuv5e:4x8")
    add("--gcs_scratch_location", default="", help="taken, not used: nothing is kept in a bucket")
    add("--num_elastic_slices", type=int, default=0, help="start with so many islands fewer")
    add("--virtual_slices", default="", help="taken, not used: islands are what workers make")
    add("--sidecar_name", default="", help="of a proxy server: take functions for the sidecars")
    add("--sidecar_address", default="", help="host:port of a worker's sidecar (off)")
    add(_CODE, action="store_true", help="of a sidecar: run the code of any client")
    add("--enable_metrics_collection", default="", help="taken, not used: see the status page")
    add("--advertise", default="", help="where others reach this worker (or HOST_ADDRESS)")
    add("--island", type=int, help="this worker's island (or MEGASCALE_SLICE_ID; default: any)")
    add("--island_host", type=int, help="this worker within its island (or TPU_WORKER_ID)")
    add("--island_hosts", type=int, help="workers of one island (or TPU_WORKER_HOSTNAMES)")
    add("--status_port", type=int, help="the resource manager's status page")
    add("--lease_s", type=float, default=2.0, help="a worker silent for so long is gone")
    add("--memory_limit_bytes", type=int, default=0, help="of a worker on a CPU; 0: the machine's")
    add("--host_buffer_bytes", type=int, default=16 << 30, help="bytes of a client that may wait")
    add(
        "--checkpoint_root",
        action="append",
        default=[],
        metavar="PATH",
        help="checkpoints below it a worker reads itself when a client asks; may be given again",
    )
    add("--tls_cert", default="", metavar="PEM", help="this process's certificate")
    add("--tls_key", default="", metavar="PEM", help="its private key")
    add("--tls_ca", default="", metavar="PEM", help="authority of all processes' certificates")
    add(
        TRUST_FLAG,
        action="store_true",
        help="nobody else is on this network: serve on it without TLS. Whoever reaches a port can "
        f"run programs on the devices (or {TRUST_VARIABLE}=1)",
    )
    return parser
