"""jax.distributed for the hosts of one replica; it runs until the process ends.

CPUs communicate over Gloo, GPUs over NCCL, TPUs over their own network. The only file of this
package that changes jax's settings.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter
from pathlib import Path

import jax

from model_server.multihost.hello import why_uneven
from model_server.multihost.hostnames import is_loopback
from model_server.multihost.membership import Membership

logger = logging.getLogger(__name__)

# The replica's own heartbeat names a lost host within seconds. jax would kill the process before it
# has answered its clients, so jax must be the last to notice.
_HEARTBEAT_S = 600


def free_port(host: str) -> int:
    """Return a free port; a new one at each start keeps out hosts of an earlier gang."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def join(membership: Membership, coordinator: str, bind: str, timeout_s: float) -> None:
    """Make the devices of all hosts known to jax; blocks until all have joined.

    coordinator: host:port of the service that the primary runs, which listens at `bind`.
    """
    jax.config.update("jax_enable_preemption_service", False)  # it would swallow SIGTERM
    jax.distributed.initialize(
        coordinator,
        membership.count,
        membership.ordinal,
        coordinator_bind_address=bind,
        cluster_detection_method="deactivate",  # the hosts have already found each other
        initialization_timeout=max(1, round(timeout_s)),
        heartbeat_timeout_seconds=_HEARTBEAT_S,
    )


def take_cache_folder() -> Path | None:
    """Return jax's compilation cache folder and turn that cache off (see `programs`)."""
    folder = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_compilation_cache_dir", None)
    return Path(folder) / "hosts" if folder and "://" not in folder else None


def unreachable(membership: Membership) -> str | None:
    """Return why other hosts cannot reach this one's CPUs, or None if they can.

    jax announces the address to which this host's own name resolves, which is 127.0.1.1 by default
    on Debian.
    """
    if jax.local_devices()[0].platform != "cpu" or is_loopback(membership.primary):
        return None
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as exc:
        return f"host {membership.ordinal} cannot resolve its own name {name}: {exc}"
    if not is_loopback(address):
        return None
    return (
        f"host {membership.ordinal} ({membership.names[membership.ordinal]}) resolves its own "
        f"name, {name}, to {address}, which other hosts cannot reach: correct it in /etc/hosts"
    )


def uneven(membership: Membership) -> str | None:
    """Return which host's devices differ from the primary's, or None if all are alike."""
    devices = jax.devices()
    numbers = Counter(device.process_index for device in devices)
    kinds = {device.process_index: device.device_kind for device in devices}
    found = {ordinal: (count, kinds[ordinal]) for ordinal, count in numbers.items()}
    return why_uneven(found, membership.names)
