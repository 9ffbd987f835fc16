"""What one model server process was told: the flags as one frozen value.

Knows nothing of argparse, gRPC or jax; `__main__` builds it once and passes it down.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field

from sax.config import GROUP_PORT, MODEL_METRICS_PORT, MODEL_PORT, check_address
from sax.machine import machine_memory
from sax.names import CellId
from sax.security import OPEN_TO_ALL, Security

BESIDE_CHECKPOINTS = "checkpoint"  # the value of --programs for what lies beside each checkpoint
_POSITIVE = (
    "slots",
    "page_size",
    "queue",
    "drain_seconds",
    "host_timeout_seconds",
    "bring_up_seconds",
    "kv_expiry_seconds",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelServerConfig:
    """The flags of `python -m model_server`; None or 0 means "work it out" where said so."""

    host: str = "127.0.0.1"
    port: int = MODEL_PORT  # 0: any free one
    metrics_port: int = MODEL_METRICS_PORT  # 0: any free one; -1: no metrics
    advertise: str = ""  # host that others reach this one by; "": as --host, or the machine's own
    sax_cell: str = "/sax/test"  # "": join no admin, take models of any cell
    admin: str | None = None  # host:port; None: found as every client finds it
    platform_chip: str = "cpu"
    platform_topology: str = "1"
    tags: tuple[str, ...] = ()
    model_filter_regex: str = ".*"  # full match on the model paths to offer
    imports: tuple[str, ...] = ()  # modules that register models of their own
    jax_cache_dir: str | None = None
    programs: str = ""  # where programs compiled ahead are taken from: a place, or "checkpoint"
    slots: int = 32
    page_size: int = 64
    max_context: int | None = None  # None: the model's own
    kv_cache_bytes: int | None = None  # None: whole contexts; on a CPU 1 GiB at most
    memory_limit_bytes: int | None = None  # None: what the machine or its container has
    queue: int = 256
    strict_compile: bool = False  # a compile while serving raises instead of only counting
    drain_seconds: float = 20.0
    hosts: str = ""  # of this replica: a count or host names; "": as the environment says, else 1
    host_ordinal: int | None = None  # this host's; 0 is the primary; None: as the environment says
    group_port: int = GROUP_PORT  # where the hosts of a replica meet, on the primary
    host_timeout_seconds: float = 3.0  # a host that is silent for so long is lost
    bring_up_seconds: float = 600.0  # for all hosts of a replica to be there
    cpu_devices: int | None = None  # devices that a CPU host pretends to have
    prefill: bool = False  # compute prompts for servers that name this one in --prefill_servers
    prefill_servers: tuple[str, ...] = ()  # host:port of servers that compute prompts for this one
    kv_expiry_seconds: float = 60.0  # for keys and values that nobody fetches
    security: Security = OPEN_TO_ALL
    incarnation: str = field(default_factory=lambda: secrets.token_hex(16))

    def __post_init__(self) -> None:
        if self.sax_cell:
            CellId.parse(self.sax_cell)
        _check_regex(self.model_filter_regex)
        for name in _POSITIVE:
            _check_positive(name, getattr(self, name))
        for name in ("max_context", "kv_cache_bytes", "memory_limit_bytes", "cpu_devices"):
            if (value := getattr(self, name)) is not None:
                _check_positive(name, value)
        for address in self.prefill_servers:
            check_address(address, "--prefill_servers")

    @property
    def cell(self) -> str:
        """The bare cell name, "" when this server belongs to none."""
        return CellId.parse(self.sax_cell).cell if self.sax_cell else ""

    @property
    def gives_pages(self) -> bool:
        """Whether prompts are computed here for other servers."""
        return self.prefill

    @property
    def takes_pages(self) -> bool:
        """Whether other servers compute prompts for this one."""
        return bool(self.prefill_servers)

    @property
    def memory_limit(self) -> int:
        """Bytes this process may fill on a CPU; accelerators ask their devices."""
        return self.memory_limit_bytes or machine_memory()

    def environment(self) -> dict[str, str]:
        """What must be in the environment before jax is imported, unless the user set it."""
        wanted = {
            # The preemption service would swallow the SIGTERM that tells us to drain.
            "JAX_ENABLE_PREEMPTION_SERVICE": "false",
            "TF_CPP_MIN_LOG_LEVEL": "1",
            # The text of a kernel would tell in which folder sax is installed, and a program that
            # was compiled elsewhere would be taken for another.
            "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",
        }
        if self.cpu_devices:
            wanted["JAX_NUM_CPU_DEVICES"] = str(self.cpu_devices)
            # XLA:CPU sizes its threads by the cores; with fewer of them than devices that wait for
            # each other it stops for ever.
            wanted["NPROC"] = str(max(16, 4 * self.cpu_devices))
            wanted["JAX_PLATFORMS"] = "cpu"
        if self.jax_cache_dir:
            wanted["JAX_COMPILATION_CACHE_DIR"] = self.jax_cache_dir
            # Every bucket is worth keeping: together they are the time to LOADED.
            wanted["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
            wanted["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
        return wanted


def _check_positive(name: str, value: float) -> None:
    if value <= 0:
        raise ValueError(f"--{name} is {value}: give a number above 0")


def _check_regex(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as exc:
        raise ValueError(
            f"--model_filter_regex {pattern!r} is no regular expression: {exc}"
        ) from exc
