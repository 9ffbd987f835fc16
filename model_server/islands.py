"""Islands: groups of devices that one program may span, and the proxy server that may have them.

A proxy server has any number of islands; without one, all devices of a replica are one island. jax
names its platform `proxy`: `JAX_PLATFORMS=proxy JAX_BACKEND_TARGET=grpc://host:29000` chooses it.
jaxlib has the client; what it lacks is the registration.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import jax
import jaxlib._ifrt_proxy as _ifrt_proxy
import numpy as np

from sax.errors import InvalidRequest, Unavailable

logger = logging.getLogger(__name__)

LATE_NS = 1_000_000
_SET, _GET = 29, 30  # PR_SET_TIMERSLACK and PR_GET_TIMERSLACK of prctl(2)


def islands() -> Mapping[int, Sequence[Any]]:
    """Return the devices of each island, by its number.

    Raises Unavailable if an island that was named is not there.
    """
    if not is_proxied():
        return {0: jax.devices()}
    found: dict[int, list[Any]] = {}
    for device in jax.devices():
        found.setdefault(getattr(device, "slice_index", 0), []).append(device)
    if missing := set(BACKEND.chosen) - found.keys():
        raise Unavailable(
            f"the proxy server has no island {min(missing)}: name some of {sorted(found)} with "
            "--islands"
        )
    return {number: found[number] for number in BACKEND.chosen or sorted(found)}


Copy = tuple[int, ...]  # the islands that hold one copy of a model: one per stage


def copies(stages: int) -> list[Copy]:
    """Divide the islands, in order, among copies of a model with this many stages.

    Raises InvalidRequest if they are too few for one, Unavailable as `islands` does.
    """
    numbers = list(islands())
    if len(numbers) < stages:
        raise InvalidRequest(
            f"NUM_STAGES is {stages} and there are {len(numbers)} islands: give at most one stage "
            "per island, or start more islands",
            param="overrides.NUM_STAGES",
        )
    firsts = range(0, len(numbers) - stages + 1, stages)
    return [tuple(numbers[first : first + stages]) for first in firsts]


def copy_name(copy: Copy) -> str:
    return "+".join(map(str, copy))


def island_devices() -> Sequence[Any]:
    """Return the devices that a model spans by default: those of the first island."""
    return next(iter(islands().values()))


def told_limit(device: Any) -> int | None:
    """Return the bytes that a proxy server's device may hold; None: jax knows it here."""
    return getattr(device, "memory_limit_bytes", None) if is_proxied() else None


def answers(island: int) -> bool:
    """Return False while an island is lost; connects again if the proxy server was."""
    try:
        BACKEND.reconnect()
        device = islands()[island][0]
        jax.device_put(np.int32(1), device).block_until_ready()
    except (RuntimeError, KeyError, Unavailable):  # jax's errors are RuntimeErrors
        return False
    return True


@contextlib.contextmanager
def late_timers() -> Iterator[None]:
    """Let timers of threads that begin meanwhile fire up to LATE_NS too late, on Linux.

    jaxlib's client of a proxy server has a thread that sends waiting deletions every 50 us, 20,000
    times a second for as long as it is connected: a fifth of a core on virtual machines. Whatever
    else is sent takes them along, so the thread may as well come a millisecond later.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    prctl = ctypes.CDLL(None).prctl
    before = prctl(_GET)
    prctl(_SET, ctypes.c_ulong(LATE_NS))
    try:
        yield
    finally:
        prctl(_SET, ctypes.c_ulong(before))


_PLATFORM = "proxy"
_TARGET = "JAX_BACKEND_TARGET"
# The client takes no other word for a server without TLS: in a pod or on this machine.
_PLAINTEXT = "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"
_TIMEOUT = "PATHWAYS_PROXY_CONNECTION_TIMEOUT_SECS"
_LONGEST_S = 300  # that a proxy server may take to be there


def is_proxied(environ: Mapping[str, str] | None = None) -> bool:
    """Return True if jax's devices are those of a proxy server."""
    chosen = (os.environ if environ is None else environ).get("JAX_PLATFORMS", "")
    return _PLATFORM in chosen.split(",")


class ProxyBackend:
    """The connection to a proxy server, lost and made again in one process."""

    def __init__(self) -> None:
        self._lost = threading.Event()
        self._reconnecting = threading.Lock()
        self._why = ""
        self.chosen: tuple[int, ...] = ()  # islands to compute on; none named: all
        self._listeners: dict[object, Callable[[str], None]] = {}

    @property
    def trouble(self) -> str:
        """Why nothing can be computed; "" while the connection holds."""
        return f"the proxy server is lost: {self._why}" if self._lost.is_set() else ""

    def listen(self, key: object, lost: Callable[[str], None]) -> None:
        """Call `lost` with the reason, on a separate thread, whenever the connection is lost."""
        self._listeners[key] = lost

    def forget(self, key: object) -> None:
        self._listeners.pop(key, None)

    def register(self, environ: MutableMapping[str, str]) -> None:
        """Make the platform known to jax, before its first device is asked for.

        Raises InvalidRequest without an address.
        """
        if not environ.get(_TARGET):
            raise InvalidRequest(
                f"JAX_PLATFORMS=proxy needs the address of a proxy server: set {_TARGET}, as in "
                f"{_TARGET}=grpc://127.0.0.1:29000"
            )
        environ.setdefault(_PLAINTEXT, "true")
        # Its programs are compiled by the workers, which cache them; the client cannot read them.
        jax.config.update("jax_enable_compilation_cache", False)
        from jax.extend import backend  # with Pallas, which takes 0.3 s to import

        backend.register_backend_factory(
            _PLATFORM, lambda: self._connect(environ), priority=-1, fail_quietly=False
        )

    def _connect(self, environ: Mapping[str, str]) -> Any:
        options = _ifrt_proxy.ClientConnectionOptions()
        options.connection_timeout_in_seconds = int(environ.get(_TIMEOUT, _LONGEST_S))
        options.on_connection_update = lambda told: logger.info("proxy server: %s", told)
        options.on_disconnect = self._disconnected
        with late_timers():
            return _ifrt_proxy.get_client(environ[_TARGET], options)

    def _disconnected(self, why: str) -> None:
        self._why = str(why).strip().partition("\n")[0][:300]
        self._lost.set()
        logger.warning("%s", self.trouble)
        for lost in list(self._listeners.values()):
            threading.Thread(target=lost, args=(self.trouble,), daemon=True).start()

    def reconnect(self) -> None:
        """Connect again, if the connection is lost. Raises RuntimeError if no server answers."""
        with self._reconnecting:
            if self._lost.is_set():
                from jax.extend import backend

                backend.clear_backends()
                jax.devices()
                self._lost.clear()
                logger.info("connected to the proxy server again")


BACKEND = ProxyBackend()  # jax has one
