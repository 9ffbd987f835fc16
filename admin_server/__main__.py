"""`python -m admin_server`: the control plane of one cell as a process."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable

from admin_server.assignment.autoscaler import ScalingTiming
from admin_server.cell_config import with_configured_root
from admin_server.config import AdminConfig
from admin_server.process import serve
from sax.auth.security import Security, add_security_flags
from sax.config import ROOT_VARIABLE
from sax.errors import SaxError
from sax.flags.parser import ServerParser
from sax.flags.process_logs import ProcessLogs, add_log_flags
from sax.names import CellId

Add = Callable[..., object]  # argparse's add_argument

_log = logging.getLogger("admin_server")
_YOUNG = 50_000  # new live objects; about those of one large round
_MIDDLE = 20
_FULL = 200


def collect_seldom() -> None:
    """Set the thresholds for the whole process; call once it is set up."""
    gc.collect()
    gc.freeze()  # modules are never freed
    gc.set_threshold(_YOUNG, _MIDDLE, _FULL)


_EXAMPLES = """\
examples:
  python -m admin_server --sax_cell /sax/test --fs_root ./state
      a cell on this machine, with its state in ./state
  python -m admin_server --sax_cell /sax/test --fs_root s3://bucket/prefix --host 0.0.0.0
      state in object storage (also gs://, az://), reachable from other machines; run it twice
      and the second follows the first, taking over within seconds if it dies

Credentials for object storage come from the machine's own role or the environment:
  s3://  AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, and for
         other S3 servers AWS_ENDPOINT_URL (may be http://)
  gs://  GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT (a key file), or
         GOOGLE_BEARER_TOKEN; GOOGLE_BASE_URL for another endpoint
  az://  AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN;
         AZURE_STORAGE_ENDPOINT for another endpoint
A store that ignores create-if-absent is refused at startup. While the store fails, or was deleted
or replaced, changes are refused and reads continue; /readyz, /healthz and the metrics
sax_admin_store_failing and sax_admin_store_replaced report it.

Model servers join with --admin HOST:PORT. The status page shows why a replica is not ready.
"""


def main() -> int:
    """Run until SIGTERM or SIGINT; 0 after a graceful stop."""
    config = parse(sys.argv[1:])
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        config.logs.start("admin_server")
        collect_seldom()
        asyncio.run(_serve(config))
    except SaxError as exc:
        _log.error("%s", exc)
        return 1
    return 0


async def _serve(config: AdminConfig) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if config.experimental_assigner:
        _log.info(
            "--sax_admin_exp_assigner changes nothing here: models share servers by memory anyway"
        )
    await serve(await with_configured_root(config), stop)


def parse(arguments: list[str]) -> AdminConfig:
    parser = make_parser()
    flags = parser.parse_args(arguments)
    only_check = parser.take_own(vars(flags))
    try:
        config = _config(flags)
    except (SaxError, ValueError) as exc:
        parser.error(str(exc))
    if only_check:
        parser.exit()
    return config


def _config(flags: argparse.Namespace) -> AdminConfig:
    """Raises SaxError, ValueError."""
    default = AdminConfig()
    return AdminConfig(
        cell=CellId.parse(flags.sax_cell),
        host=flags.host,
        port=flags.port,
        status_port=flags.status_port,
        fs_root=flags.fs_root or default.fs_root,
        sax_root=flags.sax_root or None,
        advertise=flags.advertise,
        snapshot_every=flags.snapshot_every,
        beat_s=flags.beat_s,
        store_timeout_s=flags.store_timeout_s,
        scaling=ScalingTiming(
            up_s=flags.scale_up_s, down_s=flags.scale_down_s, idle_s=flags.scale_idle_s
        ),
        security=Security.take_flags(vars(flags)),
        kubernetes=flags.kubernetes,
        kubernetes_namespace=flags.kubernetes_namespace,
        kubernetes_limit=flags.kubernetes_limit,
        experimental_assigner=flags.sax_admin_exp_assigner,
        logs=ProcessLogs.take_flags(vars(flags)),
    )


def make_parser() -> ServerParser:
    default = AdminConfig()
    parser = ServerParser(
        prog="python -m admin_server",
        description="The control plane of one cell: keeps what is published, tells model servers "
        "what to load, and tells clients which replicas are ready. Requests do not pass through "
        "it.",
        epilog=_EXAMPLES,
    )
    _add_addresses(parser.add_argument, default)
    _add_state(parser.add_argument, default)
    _add_scaling(parser.add_argument, default.scaling)
    _add_kubernetes(parser.add_argument, default)
    parser.add_argument(
        "--sax_admin_exp_assigner",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="Saxml's switch for several models on one server, which changes nothing here: models "
        "always share servers by memory",
    )
    add_log_flags(parser)
    add_security_flags(
        parser,
        "who may publish, join model servers and change every model: operators, model servers; "
        "* for everyone",
    )
    return parser


def _add_addresses(add: Add, default: AdminConfig) -> None:
    add("--sax_cell", default=str(default.cell), help="cell name (default %(default)s)")
    add("--host", default=default.host, help="address to listen on (default %(default)s)")
    add("--port", type=int, default=default.port, help="gRPC port; 0 for any (default %(default)s)")
    add(
        "--status_port",
        type=int,
        default=default.status_port,
        help="HTTP port of the status page, /status.json, /healthz, /readyz and /metrics; 0 for "
        "any, -1 for none (default %(default)s)",
    )


def _add_state(add: Add, default: AdminConfig) -> None:
    add(
        "--fs_root",
        help="folder or URL (file://, s3://, gs://, az://, memory://) for the durable "
        "state; as long as it survives, no acknowledged change is lost (default: as Saxml's "
        f"admin_config wrote below --sax_root, else {default.fs_root})",
    )
    add(
        "--sax_root",
        default=os.environ.get(ROOT_VARIABLE),
        help="folder or URL (as for --fs_root) where sax/<cell>/location.proto is written, to tell "
        "clients this server's address; set the clients' SAX_ROOT to the same (default: "
        f"${ROOT_VARIABLE})",
    )
    add("--advertise", help="host in location.proto (default: --host, or this machine's address)")
    add(
        "--snapshot_every",
        type=int,
        default=default.snapshot_every,
        help="records between snapshots of the state (default %(default)s)",
    )
    add(
        "--beat_s",
        type=float,
        default=default.beat_s,
        help="seconds between the leader's beats in the store; another server takes over after "
        "three missed beats; use the same value on all (default %(default)g)",
    )
    add(
        "--store_timeout_s",
        type=float,
        default=default.store_timeout_s,
        help="refuse a change that takes the --fs_root store longer than this many seconds "
        "(default %(default)g)",
    )


def _add_scaling(add: Add, scaling: ScalingTiming) -> None:
    for flag, seconds, text in (
        ("--scale_up_s", scaling.up_s, "the queue must exceed its target before adding replicas"),
        ("--scale_down_s", scaling.down_s, "one replica fewer must be enough before removing it"),
        ("--scale_idle_s", scaling.idle_s, "without requests before removing the last replica"),
    ):
        add(flag, type=float, default=seconds, help=f"seconds {text} (default %(default)s)")


def _add_kubernetes(add: Add, default: AdminConfig) -> None:
    add(
        "--kubernetes",
        metavar="FOLDER",
        help="create missing model servers in Kubernetes and delete them when unused: a folder of "
        "templates (one JobSet or LeaderWorkerSet with one replica per *.yaml); needs the extra "
        "kubernetes and permissions on these kinds (default: no Kubernetes)",
    )
    add(
        "--kubernetes_namespace",
        help="namespace of those objects (default: that of this pod, or default)",
    )
    add(
        "--kubernetes_limit",
        type=int,
        default=default.kubernetes_limit,
        help="maximum number of those objects, whatever is published (default %(default)s)",
    )


if __name__ == "__main__":
    sys.exit(main())
