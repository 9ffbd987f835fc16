"""Jax as its flags want it: options checked by name, and its profiler's server.

Imports jax only when called, once the environment variables that it reads are set.
"""

from __future__ import annotations

import difflib
import logging
import socket
from collections.abc import Sequence

from sax.errors import InvalidRequest
from sax.flags.parser import JAX_FLAG

logger = logging.getLogger(__name__)


def check_jax_flags(flags: Sequence[str]) -> None:
    """Import jax, which reads the flags from the environment, if there are any.

    Raises InvalidRequest for a flag that jax does not have, or a value that it does not take.
    """
    if not flags:
        return
    try:
        import jax
    except ValueError as exc:
        raise InvalidRequest(f"jax takes no such flag value: {exc}", param=JAX_FLAG) from exc
    options = jax.config.values
    for flag in flags:
        name = flag.partition("=")[0]
        if name not in options:
            near = difflib.get_close_matches(name, options, n=1)
            hint = f"; did you mean --{near[0]}?" if near else ""
            raise InvalidRequest(f"--{name} is no option of this jax{hint}", param=JAX_FLAG)


def start_profiler(port: int) -> None:
    """Let profilers connect at this port of every interface; 0 starts nothing.

    Initializes the devices, so the hosts of a replica must have met. Raises OSError if the port is
    taken, of which jax's own server says nothing.
    """
    if not port:
        return
    import jax

    try:
        with socket.create_server(("", port)):
            pass
    except OSError as exc:
        raise OSError(f"cannot listen on port {port} (--jax_profiler_port): {exc}") from exc
    jax.profiler.start_server(port)
    logger.info("jax's profiler listens on port %d", port)
