"""Run `python -m model_server` as one of several hosts that form a replica.

The primary becomes a model server whose loader reaches all hosts; a secondary performs its
commands. Exit status: as `drained_status` says after a drain, 2 when turned away by the primary, 75
when the replica lost a host and must be restarted as a whole, 70 on a primary whose step hung.

jax.distributed connects the hosts and runs until the process ends: CPUs communicate over Gloo, GPUs
over NCCL, TPUs over their own network.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, TypeVar

import jax

from model_server.config import HUNG, LOST, ModelServerConfig, drained_status
from model_server.engine.watchdog import StepHung
from model_server.engine.worker import Worker
from model_server.loading.language import LanguageModels
from model_server.loading.loader import make_loader
from model_server.loading.stages.host_stage import StageHost
from model_server.multihost.channel import endpoint, open_context
from model_server.multihost.hello import hello, why_uneven
from model_server.multihost.meeting import say_hello
from model_server.multihost.membership import Membership
from model_server.multihost.primary import Primary
from model_server.multihost.programs import KeptPrograms, ProgramFiles
from model_server.multihost.secondary import Secondary
from model_server.multihost.vote import Shares
from model_server.process.health_page import HealthPage
from model_server.process.jax_setup import start_profiler
from model_server.process.start import import_modules, serve
from sax.errors import InvalidRequest, SaxError
from sax.host import is_loopback

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


TURNED_AWAY = 2
# The replica's own heartbeat names a lost host within seconds. jax would kill the process before it
# has answered its clients, so jax must be the last to notice.
_HEARTBEAT_S = 600


def lead(membership: Membership, config: ModelServerConfig) -> tuple[Primary, Shares, KeptPrograms]:
    """Wait for the other hosts as the primary and join their devices.

    Raises InvalidRequest for hosts that cannot form a replica, Unavailable, OSError.
    """
    bind = own_address(membership.primary)
    own = hello(membership, config)
    primary = Primary(
        membership,
        own,
        bind=bind,
        port=config.group_port,
        timeout_s=config.host_timeout_seconds,
        bring_up_s=config.bring_up_seconds,
    )
    primary.on_loss = lambda error: end(LOST)  # until `serve` has requests to fail
    coordinator = _free_port(bind)
    machines = primary.bring_up(coordinator)
    address = endpoint(membership.primary, coordinator)
    _join(membership, address, endpoint(bind, coordinator), config.bring_up_seconds)
    if problem := _unreachable(membership) or _uneven(membership):
        primary.dismiss(problem)
        raise InvalidRequest(problem, param="--hosts")
    logger.info("all %d hosts have joined the replica", membership.count)
    salt = f"{sorted(machines.items())} {own.versions} host 0"
    kept = KeptPrograms(ProgramFiles(_take_cache_folder()), salt)
    return primary, Shares(primary, kept, alike=len(set(machines.values())) == 1), kept


def follow(membership: Membership, config: ModelServerConfig) -> tuple[Secondary, KeptPrograms]:
    """Meet the primary as a secondary and join the devices.

    Raises InvalidRequest when this host is turned away, Unavailable.
    """
    own = hello(membership, config)
    deadline_s = time.monotonic() + config.bring_up_seconds
    with open_context() as context:
        welcome = say_hello(context, own, membership.primary, config.group_port, deadline_s)
    primary_name = membership.names[0]
    secondary = Secondary(membership.ordinal, welcome, config.host_timeout_seconds, primary_name)
    secondary.on_loss = lose
    secondary.start()
    line = hold_line(welcome.host, welcome.coordinator, config.bring_up_seconds)
    _join(membership, line, line, config.bring_up_seconds)
    if problem := _unreachable(membership) or _uneven(membership):
        raise InvalidRequest(problem, param="--hosts")
    salt = f"{membership.count} {own.machine} {own.versions} host {membership.ordinal}"
    return secondary, KeptPrograms(ProgramFiles(_take_cache_folder()), salt)


def serve_together(group: Membership, config: ModelServerConfig, page: HealthPage) -> NoReturn:
    logger.info("host %d of %d (%s)", group.ordinal, group.count, group.source)
    for name in [name for name in os.environ if name.startswith("MEGASCALE_")]:
        logger.info("ignoring %s: a replica is one slice", name)
        del os.environ[name]  # or libtpu would wait for the other slices
    page.waiting = lambda: f"waiting for all {group.count} hosts of this replica"
    try:
        import_modules(config.imports)  # before the hosts meet, so that their errors show at once
        status = (_serve_share if group.ordinal else _serve_replica)(group, config, page)
    except InvalidRequest as error:
        logger.error("%s", error)
        status = TURNED_AWAY
    except (OSError, SaxError) as exc:
        logger.error("%s", exc)
        status = 1
    except SystemExit:  # a signal, before there was anything to drain
        status = drained_status(os.environ)
    except BaseException:
        logger.exception("this host cannot serve")
        status = 1
    end(status)


def _serve_replica(group: Membership, config: ModelServerConfig, page: HealthPage) -> int:
    primary, shares, kept = _interruptible(lambda: lead(group, config))
    address = own_address(group.primary)
    stage_host = StageHost(membership=group, address=address, programs=kept)
    loader = make_loader(config)
    loader.context.use(LanguageModels(loader.context, shares, stage_host))
    lost = serve(config, loader, page, primary)
    primary.close()
    if lost:
        return HUNG if isinstance(lost, StepHung) else LOST
    return drained_status(os.environ)


def _serve_share(group: Membership, config: ModelServerConfig, page: HealthPage) -> int:
    """Perform the primary's commands until it says Bye."""
    secondary, kept = _interruptible(lambda: follow(group, config))
    start_profiler(config.jax_profiler_port)
    stage_host = StageHost(
        membership=group,
        address=address_towards(group.primary, config.group_port),
        programs=kept,
        on_failure=secondary.fail,
    )
    models = LanguageModels(make_loader(config).context, stage_host=stage_host)
    page.waiting = lambda: ""

    def on_signal(*_: object) -> None:
        page.waiting = lambda: "draining"
        # In another thread: the interrupted one may hold the sender's lock.
        threading.Thread(target=secondary.leave, daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    reason = ""
    try:
        secondary.run(models.share)
    except SaxError as error:
        reason = error.text
    except Exception as exc:
        logger.exception("this host cannot go on")
        secondary.wait_for_loss()
        reason = f"{type(exc).__name__}: {exc}"[:500]
    secondary.end(reason)
    return LOST if reason else drained_status(os.environ)


def _interruptible(work: Callable[[], Result]) -> Result:
    """Run in a thread so that signals are handled: jax blocks them while waiting for hosts."""
    return Worker.once("bring-up", work).result()


def own_address(primary: str) -> str:
    """Return the address under which the other hosts know this one, or 0.0.0.0 if unknown."""
    try:
        address = str(socket.getaddrinfo(primary, None)[0][4][0])
        _free_port(address)
    except OSError as exc:
        logger.warning(
            "%s is not an address of this host (%s): listening on every address", primary, exc
        )
        return "0.0.0.0"
    return address


def address_towards(host: str, port: int) -> str:
    """Return the local address that routes to another host."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # UDP: picks the route, sends nothing
        return str(probe.getsockname()[0])


def lose(reason: str) -> NoReturn:
    logger.error("%s", reason)
    end(LOST)


def end(status: int) -> NoReturn:
    """Exit at once: a normal exit makes jax wait for the other hosts."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(status)


def _free_port(host: str) -> int:
    """Return a free port; a new one at each start keeps out hosts of an earlier gang."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _join(membership: Membership, coordinator: str, bind: str, timeout_s: float) -> None:
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


def _take_cache_folder() -> Path | None:
    """Return jax's compilation cache folder and turn that cache off (see `programs`)."""
    folder = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_compilation_cache_dir", None)
    return Path(folder) / "hosts" if folder and "://" not in folder else None


def _unreachable(membership: Membership) -> str | None:
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


def _uneven(membership: Membership) -> str | None:
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
        threading.Thread(target=_relay, args=args, name="line", daemon=True).start()


def _relay(near: socket.socket, there: tuple[str, int], deadline_s: float) -> None:
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
