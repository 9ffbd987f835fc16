"""Flags of all roles, exactly as the tutorial and the PathwaysJob controller pass them.

They are taken in abseil's spellings, as Google's programs take them. The tutorial's workers and
proxy servers have no --node_type: a worker is known by its slice. Flags that begin with `--xla_`
are options for the compiler of the workers. Environment variables stand in for flags where the
controller sets them. Raises InvalidRequest naming the flag at fault.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from model_server.config import check_root
from model_server.pathways.link.safety import TRUST_FLAG, TRUST_VARIABLE, LinkSafety
from sax.config import check_address
from sax.errors import InvalidRequest
from sax.flags.parser import XLA_FLAG, ServerParser
from sax.host import is_loopback

MANAGER, WORKER, PROXY, LOCAL = "resource_manager", "worker", "proxy_server", "local"
SIDECAR = "sidecar"
ROLES = (MANAGER, WORKER, SIDECAR, PROXY, LOCAL)
PORTS = {MANAGER: 29001, WORKER: 29005, SIDECAR: 50051, PROXY: 29000, LOCAL: 29000}
_UNUSED = ("virtual_slices", "enable_metrics_collection")
_CODE = "--colocated_python"
_SLICE = "MEGASCALE_SLICE_ID"
_TRUE = ("1", "true", "yes")
_MOST_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class PathwaysFlags:
    """Flags of one process."""

    role: str
    told_by: str = ""  # the setting that implied the role without --node_type
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
    checkpoint_roots: tuple[str, ...] = ()  # that a worker may read for clients
    takes_functions: bool = False  # of a proxy server: pickled ones of clients
    sidecar: str = ""  # host:port of a worker's; "": functions are refused
    compile_options: Mapping[str, str] = field(default_factory=dict[str, str])
    unused: Sequence[str] = ()  # given for Google's programs; ours has nothing like it
    safety: LinkSafety = LinkSafety()


def parse(arguments: Sequence[str], environ: Mapping[str, str]) -> PathwaysFlags:
    """Return the flags of a process. Raises InvalidRequest; SystemExit for --help."""
    parser = _parser()
    found, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise InvalidRequest(
            f"{' '.join(unknown)}: no flag of a Pathways role; see "
            "`python -m model_server.pathways --help`",
            param=unknown[0].lstrip("-"),
        )
    trusted = found.trust_network
    if trusted is None:
        trusted = environ.get(TRUST_VARIABLE, "").lower() in _TRUE
    safety = LinkSafety(
        tls_cert=found.tls_cert, tls_key=found.tls_key, tls_ca=found.tls_ca, trusted=trusted
    )
    role, told_by = _role(found, environ)
    made = PathwaysFlags(
        role=role,
        told_by=told_by,
        host=found.host if found.host is not None else _host(role, trusted, safety),
        port=PORTS[role] if found.server_port is None else found.server_port,
        manager=_manager(role, found.resource_manager_address, environ),
        advertised=found.advertise or environ.get("HOST_ADDRESS", ""),
        instance_type=found.instance_type,
        instance_count=found.instance_count,
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
        compile_options=dict(each.partition("=")[::2] for each in found.xla_flags),
        unused=[f"--{name}" for name in _UNUSED if getattr(found, name)],
        safety=safety,
    )
    safety.check(made.host, "--host")
    if role == SIDECAR:
        _check_code(found.colocated_python, made.host, safety)
    if parser.take_own(vars(found)):
        parser.exit()
    return made


def _role(found: argparse.Namespace, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the role, and the setting that implied it, if any. Raises InvalidRequest."""
    if found.node_type is not None:
        return found.node_type, ""
    if found.island is not None:
        return WORKER, "--island"
    if environ.get(_SLICE):
        return WORKER, f"{_SLICE}={environ[_SLICE]}"
    if found.resource_manager_address:
        return PROXY, f"--resource_manager_address without a slice ({_SLICE})"
    raise InvalidRequest(
        f"--node_type is missing: say {', '.join(ROLES[:-1])} or {ROLES[-1]}", param="node_type"
    )


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
    text = environ.get(_SLICE, "")
    return given if given is not None else _whole(text, _SLICE) if text else None


def _hosts(given: int | None, environ: Mapping[str, str]) -> int:
    names = environ.get("TPU_WORKER_HOSTNAMES", "")
    return given or (len(names.split(",")) if names else 1)


def _number(given: int | None, environ: Mapping[str, str], name: str, default: int) -> int:
    if given is not None:
        return given
    return _whole(environ[name], name) if environ.get(name) else default


def _whole(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise InvalidRequest(f"{name}={text!r} is no number", param=name)
    return int(text)


def _from(least: int, most: float = math.inf) -> Callable[[str], int]:
    """Return a parser of numbers from `least` to `most`."""
    told = f"{least} or more" if most == math.inf else f"{least} to {most:g}"

    def parsed(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r}: use {told}")
        return value

    return parsed


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: use seconds above 0")
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


class _Parser(ServerParser):
    """Refuses with our errors."""

    def error(self, message: str) -> NoReturn:
        raise InvalidRequest(message)


def _parser() -> _Parser:
    parser = _Parser("python -m model_server.pathways", takes_also=XLA_FLAG)
    add = parser.add_argument
    switch = argparse.BooleanOptionalAction
    port = _from(0, _MOST_PORT)
    add("--node_type", choices=ROLES, help="the role of this process; without it a worker is known "
        f"by --island or {_SLICE}, and a proxy server by having neither")  # fmt: skip
    add("--server_port", type=port, help="port to serve on (29000 proxy, 29001 manager, 29005)")
    add("--host", help="address to serve on (default 127.0.0.1; all, with TLS or trust)")
    add("--resource_manager_address", default="", help="host:port, for workers and proxy servers")
    add("--instance_count", type=_from(1), default=1, help="islands that there should be")
    add("--instance_type", default="cpu:1", help="devices of an island: cpu:2, tpuv5e:4x8")
    add("--gcs_scratch_location", default="", help="taken, not used: nothing is kept in a bucket")
    add("--num_elastic_slices", type=_from(0), default=0, help="start with so many islands fewer")
    add("--virtual_slices", default="", help="taken, not used: islands are what workers make")
    add("--sidecar_name", default="", help="of a proxy server: take functions for the sidecars")
    add("--sidecar_address", default="", help="host:port of a worker's sidecar (off)")
    add(_CODE, action=switch, default=False, help="of a sidecar: run the code of any client")
    add("--enable_metrics_collection", action=switch, default=False,
        help="taken, not used: see the status page")  # fmt: skip
    add("--advertise", default="", help="where others reach this worker (or HOST_ADDRESS)")
    add("--island", type=_from(0), help=f"this worker's island (or {_SLICE}; default: any)")
    add("--island_host", type=_from(0), help="this worker within its island (or TPU_WORKER_ID)")
    add("--island_hosts", type=_from(1), help="workers of one island (or TPU_WORKER_HOSTNAMES)")
    add("--status_port", type=port, help="the resource manager's status page")
    add("--lease_s", type=_seconds, default=2.0, help="a worker silent for so long is gone")
    add("--memory_limit_bytes", type=_from(0), default=0,
        help="of a worker on a CPU; 0: the machine's")  # fmt: skip
    add("--host_buffer_bytes", type=_from(1), default=16 << 30,
        help="bytes of a client that may wait")  # fmt: skip
    add("--checkpoint_root", action="append", default=[], metavar="PATH",
        help="checkpoints below it a worker reads itself when a client asks; may be given again"
    )  # fmt: skip
    add("--tls_cert", default="", metavar="PEM", help="this process's certificate")
    add("--tls_key", default="", metavar="PEM", help="its private key")
    add("--tls_ca", default="", metavar="PEM", help="authority of all processes' certificates")
    add(TRUST_FLAG, action=switch,
        help="nobody else is on this network: serve on it without TLS. Whoever reaches a port can "
        f"run programs on the devices (or {TRUST_VARIABLE}=1)")  # fmt: skip
    add(f"--{XLA_FLAG}", action="append", default=[], dest="xla_flags", metavar="NAME=VALUE",
        help="an option of the workers' compiler; --xla_NAME=VALUE does the same")  # fmt: skip
    return parser
