"""Run a model server: parse flags, configure logging, start one process.

The only module that reads flags or configures logging. jax is imported later, once the environment
variables that it reads are set.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import NoReturn

from model_server.config import HUNG, ModelServerConfig, drained_status
from model_server.engine.worker import jobs_run
from model_server.flags.command_line import make_config
from model_server.multihost.membership import membership
from model_server.process.health_page import HealthPage
from model_server.process.heap import keep_freed_memory
from model_server.process.jax_setup import check_jax_flags, import_jax_and_flax
from sax.errors import SaxError
from sax.host import missing_model_server

logger = logging.getLogger("model_server")

_YOUNG = 50_000  # new objects before garbage is looked for: a vocabulary makes 100,000 that stay


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Serve until signalled, then exit with the status of `drained_status`."""
    config = make_config(sys.argv[1:] if arguments is None else arguments)
    keep_freed_memory()
    logging.getLogger("jax").setLevel(logging.WARNING)  # it logs every missing backend
    _start_logs(config)
    if told := missing_model_server("`python -m model_server`"):
        logger.error("%s", told)
        leave(2)
    for name, value in config.environment().items():
        os.environ.setdefault(name, value)
    os.environ.update(config.jax_environment())
    for number in (signal.SIGTERM, signal.SIGINT):  # until the event loop takes them over
        signal.signal(number, lambda *_: sys.exit(drained_status(os.environ)))
    try:
        group = membership(config.hosts, config.host_ordinal, os.environ, socket.gethostname())
    except SaxError as exc:
        logger.error("%s", exc)
        leave(2)
    try:
        page = _serve_page(config)
        gc.disable()  # what imports make stays
        check_jax_flags(config.jax_flags)
        import_jax_and_flax()
        if group.count > 1:
            from model_server.process.gang import serve_together

            serve_together(group, config, page)
        hung = _serve_alone(config, page)
    except (OSError, SaxError) as exc:
        logger.error("%s", exc)
        leave(1)
    leave(HUNG if hung else drained_status(os.environ))


def _start_logs(config: ModelServerConfig) -> None:
    try:
        config.logs.start("model_server")
    except SaxError as exc:
        sys.stderr.write(f"python -m model_server: {exc}\n")
        leave(2)


def _serve_page(config: ModelServerConfig) -> HealthPage:
    """Start answering probes now: importing jax and meeting the other hosts takes a while."""
    page = HealthPage()
    if config.metrics_ports:
        page.serve(config.host, *config.metrics_ports)
        logger.info("health and metrics on http://%s:%d/", config.host, page.port)
    return page


def _serve_alone(config: ModelServerConfig, page: HealthPage) -> bool:
    """Serve until signalled; return True if a step hung."""
    from model_server.islands import BACKEND, is_proxied
    from model_server.loading.loader import make_loader
    from model_server.process.start import import_modules, serve
    from model_server.sharing.background import lower_compilers

    if is_proxied():
        BACKEND.register(os.environ)
        BACKEND.chosen = config.islands
    import_modules(config.imports)
    gc.freeze()
    gc.set_threshold(_YOUNG)
    gc.enable()
    with contextlib.suppress(RuntimeError, AssertionError):  # no devices: `serve` says so
        lower_compilers()
    return serve(config, make_loader(config), page) is not None


def leave(status: int) -> NoReturn:
    """Exit, even if a job that cannot be stopped, such as a load, or a step that hangs, still holds
    a thread."""
    logging.shutdown()
    # The client of a proxy server calls back while the interpreter ends, which aborts it.
    proxied = "proxy" in os.environ.get("JAX_PLATFORMS", "").split(",")
    if status == HUNG or proxied or jobs_run():
        sys.stdout.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    main()
