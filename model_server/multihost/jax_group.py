"""jax.distributed for the hosts of one replica; it runs until the process ends.

CPUs communicate over Gloo, GPUs over NCCL, TPUs over their own network. The only file of this
package that changes jax's settings.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import jax

from model_server.multihost.hello import why_uneven
from model_server.multihost.membership import Membership
from sax.host import is_loopback

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


_CHUNK = 2**16
_AGAIN_S = 0.1


def hold_line(host: str, port: int, timeout_s: float) -> str:
    """Return a local address that relays to the coordination service. Raises OSError.

    jax kills a process as soon as that service, which runs in the primary's process, hangs up,
    before anyone can say which host is lost. So secondaries reach it through this relay, which
    outlives it: the replica's own heartbeat, which knows host names, notices first.

    timeout_s: how long a connection waits for a listener there.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    work = threading.Thread(
        target=_accept, args=(listener, (host, port), timeout_s), name="line", daemon=True
    )
    work.start()
    return f"127.0.0.1:{listener.getsockname()[1]}"


def _accept(listener: socket.socket, there: tuple[str, int], timeout_s: float) -> None:
    while True:
        near, _ = listener.accept()
        args = (near, there, time.monotonic() + timeout_s)
        threading.Thread(target=_lead, args=args, name="line", daemon=True).start()


def _lead(near: socket.socket, there: tuple[str, int], deadline_s: float) -> None:
    """Relay both directions until the near end hangs up."""
    with near, suppress(OSError), _connect(there, deadline_s) as far:
        threading.Thread(target=_bring_back, args=(far, near), name="line", daemon=True).start()
        while data := near.recv(_CHUNK):
            with suppress(OSError):  # far end is gone: pretend that the data is in flight
                far.sendall(data)
        far.shutdown(socket.SHUT_RDWR)


def _bring_back(far: socket.socket, near: socket.socket) -> None:
    with suppress(OSError):
        while data := far.recv(_CHUNK):
            near.sendall(data)


def _connect(there: tuple[str, int], deadline_s: float) -> socket.socket:
    """Connect, retrying until the deadline. Raises OSError."""
    while True:
        try:
            found = socket.create_connection(there, timeout=5)
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_AGAIN_S)
        else:
            found.settimeout(None)
            return found
