"""`python -m admin_server`: the control plane of one cell as a process."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys

from admin_server.config import AdminConfig
from admin_server.process import SteppedDown, serve
from sax.errors import SaxError
from sax.names import CellId
from sax.security import Security, add_security_flags

_log = logging.getLogger("admin_server")

_EXAMPLES = """\
examples:
  python -m admin_server --sax_cell /sax/test --fs_root ./state
      a cell on this machine; what is published is kept below ./state
  python -m admin_server --sax_cell /sax/test --fs_root s3://bucket/prefix --host 0.0.0.0
      state in object storage (also gs://, az://), reachable from other machines

Model servers join with --admin HOST:PORT. The status page shows why a replica is not ready.
"""


def main() -> int:
    """Run until SIGTERM or SIGINT; 0 after a graceful stop."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        asyncio.run(_serve(parse(sys.argv[1:])))
    except (SaxError, SteppedDown) as exc:
        _log.error("%s", exc)
        return 1
    return 0


async def _serve(config: AdminConfig) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve(config, stop)


def parse(arguments: list[str]) -> AdminConfig:
    """The configuration that these flags make; exits with a message for bad ones."""
    parser = _parser()
    flags = parser.parse_args(arguments)
    try:
        return AdminConfig(
            cell=CellId.parse(flags.sax_cell),
            host=flags.host,
            port=flags.port,
            status_port=flags.status_port,
            fs_root=flags.fs_root,
            sax_root=flags.sax_root,
            advertise=flags.advertise,
            snapshot_every=flags.snapshot_every,
            security=Security.take_flags(vars(flags)),
        )
    except (SaxError, ValueError) as exc:
        parser.error(str(exc))


def _parser() -> argparse.ArgumentParser:
    default = AdminConfig()
    parser = argparse.ArgumentParser(
        prog="python -m admin_server",
        description="The control plane of one cell: keeps what is published, tells model servers "
        "what to load, and tells clients which replicas are ready. It is never on the way of a "
        "request.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--sax_cell", default=str(default.cell), help="cell name (default %(default)s)")
    add("--host", default=default.host, help="address to listen on (default %(default)s)")
    add("--port", type=int, default=default.port, help="gRPC; 0: any (default %(default)s)")
    add(
        "--status_port",
        type=int,
        default=default.status_port,
        help="status page, /status.json, /healthz and /metrics on HTTP; 0: any, -1: none "
        "(default %(default)s)",
    )
    add(
        "--fs_root",
        default=default.fs_root,
        help="folder or URL (file://, s3://, gs://, az://, memory://) that holds the state; keep "
        "it, and nothing that was acknowledged is lost (default %(default)s)",
    )
    add(
        "--sax_root",
        help="folder below which sax/<cell>/location.proto tells clients this server's address",
    )
    add("--advertise", help="host in location.proto (default: --host, or this machine's address)")
    add(
        "--snapshot_every",
        type=int,
        default=default.snapshot_every,
        help="records between two snapshots of the state (default %(default)s)",
    )
    add_security_flags(
        parser,
        "who may publish, join model servers and change every model: operators, model servers; "
        "* for everyone",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
