"""Smoke test of a slice: do all hosts see all of its devices?

Run `python -m model_server.slice_check` on every host before a model is put on the slice. Hosts
find each other as model servers do (`multihost.membership`), join their devices, and add up one
number from each over the slice's own links. Exit status: 0 all devices found; 1 a different number
than expected, or the sum is wrong; 2 flags and environment do not name the hosts.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence

from model_server.multihost.channel import endpoint
from model_server.multihost.membership import Membership, membership
from sax.errors import SaxError

_PORT = 8476  # coordinator port on host 0


def main(arguments: Sequence[str] | None = None) -> int:
    flags = _parser().parse_args(arguments)
    try:
        group = membership(flags.hosts, flags.host_ordinal, os.environ, socket.gethostname())
    except SaxError as exc:
        _say(str(exc))
        return 2
    if group.count > 1:
        _join(group, flags.port, flags.timeout)
    return _check(group, flags.expect)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m model_server.slice_check",
        description="Joins the devices of all hosts of a slice and counts them. Run it on every "
        "host; hosts find each other as model servers do.",
        epilog="example:\n  SAX_HOSTS=8 SAX_SUBDOMAIN=slice-check python -m "
        "model_server.slice_check --expect 32",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--expect", type=int, help="expected number of devices, all hosts together")
    parser.add_argument("--hosts", default="", help="hosts, host 0 first, or their number")
    parser.add_argument("--host_ordinal", type=int, help="this host's number")
    parser.add_argument("--port", type=int, default=_PORT, help="port on host 0 (%(default)s)")
    parser.add_argument(
        "--timeout", type=int, default=600, help="seconds for all hosts to connect (%(default)s)"
    )
    return parser


def _join(group: Membership, port: int, timeout_s: int) -> None:
    import jax

    jax.distributed.initialize(
        endpoint(group.primary, port),
        group.count,
        group.ordinal,
        cluster_detection_method="deactivate",
        initialization_timeout=timeout_s,
    )


def _check(group: Membership, expected: int | None) -> int:
    import jax

    there = jax.device_count()
    _say(
        f"host {group.ordinal} of {group.count}: jax.device_count() is {there}, "
        f"{jax.local_device_count()} of them here, {jax.devices()[0].device_kind}"
    )
    if expected is not None and there != expected:
        _say(f"{expected} devices were expected")
        return 1
    if (total := _add_up()) != there:
        _say(f"the devices added up to {total}, not {there}: the links of this slice do not work")
        return 1
    _say(f"all {there} devices answer")
    return 0


def _add_up() -> int:
    """Sum a one from every device over the slice's links."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((jax.device_count(),), ("devices",))
    split = NamedSharding(mesh, PartitionSpec("devices"))
    ones = jax.make_array_from_callback((jax.device_count(),), split, lambda _: jnp.ones(1))
    total = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))(ones)
    return int(total)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
