"""Run `python -m model_server` as one of several hosts that form a replica.

The primary becomes a model server whose loader reaches all hosts; a secondary performs its
commands. Exit status: as `drained_status` says after a drain, 2 when turned away by the primary, 75
when the replica lost a host and must be restarted as a whole, 70 on a primary whose step hung.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn, TypeVar

from model_server.config import HUNG, LOST, ModelServerConfig, drained_status
from model_server.engine.timing.watchdog import StepHung
from model_server.engine.worker import Worker
from model_server.loading.language import LanguageModels
from model_server.loading.loader import make_loader
from model_server.loading.stages.host_stage import StageHost
from model_server.multihost import jax_group
from model_server.multihost.channel import endpoint, open_context
from model_server.multihost.hello import hello
from model_server.multihost.jax_group import hold_line
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

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

TURNED_AWAY = 2


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
    coordinator = jax_group.free_port(bind)
    machines = primary.bring_up(coordinator)
    address = endpoint(membership.primary, coordinator)
    jax_group.join(membership, address, endpoint(bind, coordinator), config.bring_up_seconds)
    if problem := jax_group.unreachable(membership) or jax_group.uneven(membership):
        primary.dismiss(problem)
        raise InvalidRequest(problem, param="--hosts")
    logger.info("all %d hosts have joined the replica", membership.count)
    salt = f"{sorted(machines.items())} {own.versions} host 0"
    kept = KeptPrograms(ProgramFiles(jax_group.take_cache_folder()), salt)
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
    jax_group.join(membership, line, line, config.bring_up_seconds)
    if problem := jax_group.unreachable(membership) or jax_group.uneven(membership):
        raise InvalidRequest(problem, param="--hosts")
    salt = f"{membership.count} {own.machine} {own.versions} host {membership.ordinal}"
    return secondary, KeptPrograms(ProgramFiles(jax_group.take_cache_folder()), salt)


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
        jax_group.free_port(address)
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
