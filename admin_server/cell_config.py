"""Saxml's config.proto of a cell, which says where its state is.

`admin_config` writes it below a root; an admin server without an --fs_root reads it there.

    python -m admin_server.cell_config --sax_cell=/sax/test --sax_root=ROOT --fs_root=STATE
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from dataclasses import replace

from google.protobuf.message import DecodeError

from admin_server.config import AdminConfig
from sax.client.location import location_folder
from sax.config import ROOT_VARIABLE
from sax.errors import InvalidRequest, SaxError
from sax.flags.parser import ServerParser
from sax.flags.process_logs import ProcessLogs, add_log_flags
from sax.names import CellId
from sax.proto import admin_pb2
from sax.storage.durable_file import SHARED
from sax.storage.object_store import ObjectMissing, ObjectStore, open_store

CONFIG = "config.proto"
_log = logging.getLogger(__name__)


async def with_configured_root(config: AdminConfig) -> AdminConfig:
    """Return the config with the fs_root that was written below its sax_root, unless it has one.

    Raises InvalidRequest, StoreUnavailable.
    """
    if config.sax_root is None or config.fs_root != AdminConfig().fs_root:
        return config
    written = await _read(_store(config.sax_root, config.cell))
    if written is None or not written.fs_root:
        return config
    _log.info("state in %s, as %s below %s says", written.fs_root, CONFIG, config.sax_root)
    return replace(config, fs_root=written.fs_root)


async def write_config(root: str, cell: CellId, fs_root: str, admin_acl: str) -> None:
    """Write it, in the place of one that is there. Raises InvalidRequest, StoreUnavailable."""
    made = admin_pb2.Config(fs_root=fs_root, admin_acl=admin_acl)
    await _store(root, cell).replace(CONFIG, made.SerializeToString())


async def _read(store: ObjectStore) -> admin_pb2.Config | None:
    try:
        return admin_pb2.Config.FromString(await store.get(CONFIG))
    except ObjectMissing:
        return None
    except DecodeError as exc:
        raise InvalidRequest(
            f"{CONFIG} is not what admin_config writes: run it again, or give --fs_root",
            param="fs_root",
        ) from exc


def _store(root: str, cell: CellId) -> ObjectStore:
    folder = f"{root.rstrip('/')}/{location_folder(cell.cell)}"
    return open_store(folder, param="sax_root", mode=SHARED)


def _parser() -> ServerParser:
    parser = ServerParser(
        "admin_config",
        description="Says once where the admin servers of a cell keep its state, as Saxml's "
        "program does: they read it below --sax_root when they have no --fs_root of their own.",
    )
    add = parser.add_argument
    add("--sax_cell", required=True, help="the cell, e.g. /sax/test")
    add(
        "--sax_root",
        default=os.environ.get(ROOT_VARIABLE, ""),
        help=f"folder or URL below which clients find the cell (default: ${ROOT_VARIABLE})",
    )
    add("--fs_root", required=True, help="folder or URL of the state")
    add(
        "--admin_acl",
        default="acl/all",
        help="written, and enforced by nobody, as in Saxml: admin servers have an --admin_acl of "
        "their own (%(default)s)",
    )
    add_log_flags(parser)
    return parser


def main() -> int:
    parser = _parser()
    values = vars(parser.parse_args(sys.argv[1:]))
    only_check = parser.take_own(values)
    try:
        ProcessLogs.take_flags(values).start("admin_server")
        cell = CellId.parse(values["sax_cell"])
        if not values["sax_root"]:
            raise InvalidRequest(f"give --sax_root, or set {ROOT_VARIABLE}", param="sax_root")
        if not only_check:
            writing = write_config(values["sax_root"], cell, values["fs_root"], values["admin_acl"])
            asyncio.run(writing)
    except SaxError as exc:
        parser.error(str(exc))
    return 0


if __name__ == "__main__":
    sys.exit(main())
