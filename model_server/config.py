"""Flags of one model server process, as one frozen value that `__main__` builds."""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sax.auth.security import OPEN_TO_ALL, Security
from sax.config import GROUP_PORT, MODEL_METRICS_PORT, MODEL_PORT, check_address
from sax.flags.process_logs import ProcessLogs
from sax.host import machine_memory, xla_threads
from sax.names import CellId, ModelId
from sax.references import HUB
from sax.types import ModelSpec
from sax.wire.rpc import REQUEST_BYTES

# Whose requests share the keys and values of tokens with which both begin: nobody's, those of one
# tenant, or all.
PrefixSharing = Literal["off", "tenant", "shared"]

LOST = 75  # EX_TEMPFAIL: another host of the replica is lost; try again
HUNG = 70  # EX_SOFTWARE: a step of this host did not finish; try again
_TERMINATED = 143  # a shell's status for SIGTERM


ANY_ADDRESS = ("0.0.0.0", "::", "[::]")


def drained_status(environ: Mapping[str, str]) -> int:
    """Return 0, but 143 in a pod of a Job.

    A Job counts a host that exits with 0 as done, and would not restart the replica after a mere
    eviction from a node.
    """
    return _TERMINATED if environ.get("JOB_COMPLETION_INDEX", "").strip() else 0


def advertised_host(host: str, told: str = "") -> str:
    """Return `told` if given, else `host`; a wildcard becomes this machine's own address."""
    if told:
        return f"[{told}]" if ":" in told and not told.startswith("[") else told
    if host not in ANY_ADDRESS:
        return host
    return socket.gethostbyname(socket.gethostname())


AUTO = "auto"  # --max_context value
BESIDE_CHECKPOINTS = "checkpoint"  # --programs value: read programs beside each checkpoint
_POSITIVE = (
    "slots",
    "page_size",
    "models",
    "queue",
    "drain_seconds",
    "host_timeout_seconds",
    "bring_up_seconds",
    "kv_expiry_seconds",
    "open_seconds",
    "step_timeout_seconds",
)
_POSITIVE_OR_NONE = (
    "max_context",
    "kv_cache_bytes",
    "memory_limit_bytes",
    "cpu_devices",
    "max_running_per_account",
    "max_queued_per_account",
    "max_mixed_blocks",
    "steps_per_launch",
)


NO_METRICS = -1
_MOST_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelServerConfig:
    """Flags of `python -m model_server`; None or 0 means "choose automatically" where noted."""

    host: str = "127.0.0.1"
    port: int = MODEL_PORT  # 0: any free one
    # None: as far above --port as the defaults are apart, else any free one; 0: any; -1: no metrics
    metrics_port: int | None = None
    vllm_metric_names: bool = True  # beside our own
    advertise: str = ""  # host for others to use; "": --host, or the machine's own address
    sax_cell: str = "/sax/test"  # "": join no admin, take models of any cell
    admin: str | None = None  # host:port; None: discovered as clients do
    platform_chip: str = "cpu"
    platform_topology: str = "1"
    tags: tuple[str, ...] = ()
    model_filter_regex: str = ".*"  # full match on the model paths to offer
    checkpoint_roots: tuple[str, ...] = ()  # folders, gs://, s3:// and hf:// URLs; none: any place
    open_seconds: float = 120.0  # to read a checkpoint's configuration, headers and tokenizer
    imports: tuple[str, ...] = ()  # modules that register custom models
    jax_cache_dir: str | None = None
    keep_programs: bool = True  # beside the compile cache, for the next start
    programs: str = ""  # where to read precompiled programs: a location, or "checkpoint"
    slots: int = 32
    page_size: int = 64
    # None: the model's own; "auto": as many tokens as memory holds in every slot
    max_context: int | Literal["auto"] | None = None
    kv_cache_bytes: int | None = None  # None: whole contexts; on a CPU 1 GiB at most
    memory_limit_bytes: int | None = None  # None: memory of the machine or container
    models: int = 1  # that are to share the memory
    queue: int = 256
    max_running_per_account: int | None = None  # None: as many as there are slots
    max_queued_per_account: int | None = None  # None: the whole queue, as long as nobody else asks
    prefix_cache: PrefixSharing = "tenant"  # who shares the keys and values of equal prompts
    max_mixed_blocks: int | None = None  # None: as measured at load, see `Pace`
    steps_per_launch: int | None = None  # None: several behind a proxy server, else one
    step_timeout_seconds: float = 30.0  # a step that takes longer hangs
    stream_interval_seconds: float = 0.03  # between messages in the middle of answers
    strict_compile: bool = False  # a compile while serving raises instead of only counting
    drain_seconds: float = 20.0
    hosts: str = ""  # of this replica: a count or host names; "": from the environment, else 1
    host_ordinal: int | None = None  # 0 is the primary; None: from the environment
    group_port: int = GROUP_PORT  # where the hosts of a replica meet, on the primary
    host_timeout_seconds: float = 3.0  # a host silent for this long is lost
    bring_up_seconds: float = 600.0  # for all hosts of a replica to connect
    cpu_devices: int | None = None  # simulated devices on a CPU host
    islands: tuple[int, ...] = ()  # behind a proxy server, to compute on; none named: all
    prefill_islands: tuple[int, ...] = ()  # of these, those that compute prompts for the others
    elastic_slices: int | None = None  # islands that may be lost in readiness; None: all but one
    prefill: bool = False  # prefill for servers that name this one in --prefill_servers
    prefill_servers: tuple[str, ...] = ()  # host:port of servers that prefill for this one
    kv_expiry_seconds: float = 60.0  # until unfetched keys and values are freed
    max_message_bytes: int = REQUEST_BYTES  # of one gRPC request
    static_models: tuple[ModelSpec, ...] = ()  # to load at start
    keep_statically_loaded_models: bool = False  # whatever an admin server says
    admin_port: int = 0  # of an admin server to run beside this one; 0: none
    deterministic_rng: bool = False  # one seed for all requests without one
    early_reject_on_dormant: bool = False  # while too few islands compute
    jax_profiler_port: int = 0  # 0: none
    jax_platforms: str = ""  # "": from the environment
    jax_flags: tuple[str, ...] = ()  # NAME=VALUE, further options of jax
    logs: ProcessLogs = ProcessLogs()
    security: Security = OPEN_TO_ALL
    incarnation: str = field(default_factory=lambda: secrets.token_hex(16))

    def __post_init__(self) -> None:
        for name, least in (("port", 0), ("metrics_port", NO_METRICS), ("group_port", 1)):
            port: int | None = getattr(self, name)
            if port is not None and not least <= port <= _MOST_PORT:
                raise ValueError(f"--{name} is {port}: give a port from {least} to {_MOST_PORT}")
        if self.sax_cell:
            CellId.parse(self.sax_cell)
        _check_regex(self.model_filter_regex)
        for name in _POSITIVE:
            _check_positive(name, getattr(self, name))
        for name in _POSITIVE_OR_NONE:
            if (value := getattr(self, name)) is not None and value != AUTO:
                _check_positive(name, value)
        for root in self.checkpoint_roots:
            check_root(root)
        if not 0 <= self.stream_interval_seconds <= 1:
            raise ValueError(
                f"--stream_interval_seconds is {self.stream_interval_seconds:g}: give 0 to 1 s"
            )
        if not REQUEST_BYTES <= self.max_message_bytes < 2**31:
            raise ValueError(
                f"--max_message_bytes is {self.max_message_bytes}: give at least {REQUEST_BYTES}, "
                f"which every client counts on, and at most {2**31 - 1}, which gRPC can send"
            )
        if self.elastic_slices is not None and self.elastic_slices < 0:
            raise ValueError(f"--elastic_slices is {self.elastic_slices}: give 0 or more")
        if strange := set(self.prefill_islands) - set(self.islands or self.prefill_islands):
            raise ValueError(f"--prefill_islands names {min(strange)}, which --islands does not")
        for address in self.prefill_servers:
            check_address(address, "--prefill_servers")
        self._check_saxml_flags()

    def _check_saxml_flags(self) -> None:
        if self.keep_statically_loaded_models and not self.static_models:
            raise ValueError("--keep_statically_loaded_models needs models to keep: --model_keys")
        for name in ("admin_port", "jax_profiler_port"):
            if not 0 <= (port := getattr(self, name)) < 65536:
                raise ValueError(f"--{name} is {port}: give a port, or 0 for none")
        if self.admin_port and not self.sax_cell:
            raise ValueError("--admin_port needs a cell: give --sax_cell /sax/NAME")
        for spec in self.static_models:
            if self.sax_cell and ModelId.parse(spec.model_id).cell != self.cell:
                raise ValueError(
                    f"--model_keys has {spec.model_id}, and this server serves {self.sax_cell} "
                    "(--sax_cell)"
                )

    @property
    def metrics_ports(self) -> tuple[int, ...]:
        """Ports to try for metrics, in this order; 0 is any free one. Empty: metrics are off."""
        if self.metrics_port is not None:
            return () if self.metrics_port == NO_METRICS else (self.metrics_port,)
        beside = self.port + MODEL_METRICS_PORT - MODEL_PORT
        return (beside, 0) if self.port and beside <= _MOST_PORT else (0,)

    @property
    def cell(self) -> str:
        """Cell name without "/sax/"; "" if this server joins no cell."""
        return CellId.parse(self.sax_cell).cell if self.sax_cell else ""

    @property
    def gives_pages(self) -> bool:
        return self.prefill or bool(self.prefill_islands)

    @property
    def takes_pages(self) -> bool:
        return bool(self.prefill_servers or self.prefill_islands)

    @property
    def memory_limit(self) -> int:
        """Bytes this process may use on a CPU; accelerators report their own limit."""
        return self.memory_limit_bytes or machine_memory()

    def environment(self) -> dict[str, str]:
        """Environment variables to set before jax is imported, unless the user set them."""
        wanted = {
            # The preemption service would swallow the SIGTERM that starts a drain.
            "JAX_ENABLE_PREEMPTION_SERVICE": "false",
            "TF_CPP_MIN_LOG_LEVEL": "1",
            # Kernel text would contain sax's install path, and a program compiled elsewhere would
            # no longer match.
            "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",
        }
        if self.cpu_devices:
            wanted["JAX_NUM_CPU_DEVICES"] = str(self.cpu_devices)
            wanted["NPROC"] = str(xla_threads(self.cpu_devices))
            wanted["JAX_PLATFORMS"] = "cpu"
        if self.jax_cache_dir:
            wanted["JAX_COMPILATION_CACHE_DIR"] = self.jax_cache_dir
            # Cache every bucket, however small: together they make up the load time.
            wanted["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
            wanted["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
        return wanted

    def jax_environment(self) -> dict[str, str]:
        """Environment variables of jax to set before it is imported, whatever the user set."""
        options = dict(flag.split("=", 1) for flag in self.jax_flags)
        if self.jax_platforms:
            options["jax_platforms"] = self.jax_platforms
        return {name.upper(): value for name, value in options.items()}


def _check_positive(name: str, value: float) -> None:
    if value <= 0:
        raise ValueError(f"--{name} is {value}: give a number above 0")


def _check_regex(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as exc:
        raise ValueError(
            f"--model_filter_regex {pattern!r} is not a regular expression: {exc}"
        ) from exc


def check_root(root: str, flag: str = "--checkpoint_roots") -> None:
    """Raise ValueError for what is neither a folder nor in a bucket."""
    if root.startswith(HUB) and flag == "--checkpoint_roots":
        return
    scheme, separator, rest = root.partition("://")
    if separator and (scheme not in ("gs", "s3") or not rest.strip("/") or ".." in rest):
        raise ValueError(f"{flag} has {root}: give gs://BUCKET/PATH or s3://BUCKET/PATH")
    if not separator and not os.path.isabs(root):
        raise ValueError(f"{flag} has {root}: give an absolute path")
