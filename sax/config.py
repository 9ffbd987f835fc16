"""Ports, and where the admin server of a cell is.

Knows nothing of connections: an address is text here.
"""

from __future__ import annotations

import os
from pathlib import Path

from sax.errors import AdminUnavailable, InvalidRequest
from sax.proto import admin_pb2

ADMIN_PORT = 10000
MODEL_PORT = 10001
GATEWAY_PORT = 8888
ADMIN_STATUS_PORT = 10002  # not 10080: browsers refuse that one
MODEL_METRICS_PORT = 10003

ADDRESS_VARIABLE = "SAX_ADMIN"
ROOT_VARIABLE = "SAX_ROOT"


def admin_address(root: str | None = None, *, cell: str | None = None) -> str:
    """Where the admin is: $SAX_ADMIN, else as written under the root, else this machine.

    One host:port, or with commas those of all admin servers of the cell.

    `root` is the folder under which admins write `sax/<cell>/location.proto` (default
    $SAX_ROOT); `cell` is a bare cell name, needed only where the root holds several.
    """
    if address := os.environ.get(ADDRESS_VARIABLE):
        return check_addresses(address, ADDRESS_VARIABLE)
    root = root or os.environ.get(ROOT_VARIABLE)
    if root:
        return _read_location(_find_location(_folder(root), cell))
    return f"127.0.0.1:{ADMIN_PORT}"


def check_address(address: str, param: str) -> str:
    """Return a well-formed host:port unchanged. Raises InvalidRequest naming `param`."""
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise InvalidRequest(
            f"{param}={address!r} is not an address: write host:port, as in 127.0.0.1:{ADMIN_PORT}",
            param=param,
        )
    return address


def check_addresses(addresses: str, param: str) -> str:
    """Return host:port,host:port unchanged: the admins of one cell. Raises InvalidRequest."""
    for address in addresses.split(","):
        check_address(address, param)
    return addresses


def location_path(root: str, cell: str) -> Path:
    """Where the admin of `cell` (a bare name) writes its address: Saxml's own layout."""
    return _folder(root) / "sax" / cell / "location.proto"


def _folder(root: str) -> Path:
    path = root.removeprefix("file://")
    if "://" in path:
        raise InvalidRequest(
            f"{ROOT_VARIABLE}={root!r}: only a folder can be searched for the admin's address; "
            f"set {ADDRESS_VARIABLE}=host:port instead",
            param=ROOT_VARIABLE,
        )
    return Path(path)


def _find_location(root: Path, cell: str | None) -> Path:
    found = sorted(root.glob(f"sax/{cell or '*'}/location.proto"))
    if not found:
        raise AdminUnavailable(
            f"no admin server has written its address under {root}/sax/{cell or '<cell>'}; "
            f"start one with this root, or set {ADDRESS_VARIABLE}=host:port"
        )
    if len(found) > 1:
        names = ", ".join(path.parent.name for path in found)
        raise InvalidRequest(
            f"{root} holds several cells ({names}); set {ADDRESS_VARIABLE}=host:port of one admin",
            param=ROOT_VARIABLE,
        )
    return found[0]


def _read_location(path: Path) -> str:
    try:
        address = admin_pb2.Location.FromString(path.read_bytes()).location
    except Exception as exc:  # protobuf's DecodeError and OSError alike: the file is no use
        raise AdminUnavailable(
            f"{path} cannot be read ({exc}); start the admin server again to rewrite it"
        ) from exc
    return check_address(address, str(path))
