"""Values shared between processes. `sax.wire.codec` has the wire format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from sax.need import Need


class ServableStatus(StrEnum):
    """Status of a model on one model server (Saxml's ModelStatus)."""

    NONE = "none"
    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"
    UNLOADING = "unloading"


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a long operation: phase "compiling bucket", 3 of 8."""

    phase: str
    done: int = 0
    total: int = 0
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaling:
    """Bounds within which the number of replicas follows the load."""

    min_replicas: int = 1  # 0: none while there are no requests
    max_replicas: int = 1
    target_queue: float = 1.0  # waiting requests per ready replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Requirements on a replica's server, besides the model path."""

    tags: tuple[str, ...] = ()  # all required
    devices: int = 0  # in one slice; 0: any number
    memory: int = 0  # bytes, whole server; 0: as learned from servers that loaded it


ANYWHERE = Placement()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model as published by an operator."""

    model_id: str  # /sax/<cell>/<model>
    model_path: str
    checkpoint: str
    replicas: int
    overrides: Mapping[str, str] = field(default_factory=dict[str, str])  # value: JSON text
    acls: Mapping[str, str] = field(default_factory=dict[str, str])  # method -> acl
    admin_acl: str = ""
    version: str = ""  # 32 hex digits; new whenever what is loaded changes
    revision: int = 0  # number of the record that last changed it; 0: unknown
    autoscaling: Autoscaling | None = None  # None: always `replicas`
    placement: Placement = ANYWHERE


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """Status of one wanted replica."""

    address: str  # "" until a server is assigned
    status: ServableStatus
    reason: str = ""  # why it is not ready
    progress: Progress | None = None
    note: str = ""  # where a ready one does not do as its model path says


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A spec and its replicas, as the admin lists them."""

    spec: ModelSpec
    replicas: tuple[ReplicaStatus, ...] = ()
    methods: tuple[str, ...] = ()
    wanted: int = 0  # replicas wanted now; under autoscaling may differ from spec.replicas
    scaling_reason: str = ""  # why that number; empty without autoscaling

    @property
    def ready_replicas(self) -> int:
        return sum(replica.status is ServableStatus.LOADED for replica in self.replicas)

    @property
    def notes(self) -> tuple[str, ...]:
        """Differences of ready replicas from what the model path promises, each text once."""
        return tuple(dict.fromkeys(replica.note for replica in self.replicas if replica.note))

    @property
    def wanted_replicas(self) -> int:
        """Replicas wanted now; an admin without autoscaling reports them in the spec."""
        return self.wanted if self.spec.autoscaling else self.spec.replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """Self-description of a model server that joins."""

    address: str  # host:port of Modelet and LMService
    data_address: str = ""  # for requests, if different
    debug_address: str = ""
    chip_type: str = "cpu"  # Saxml's flag values: cpu, tpuv5e, h100, ...
    chip_topology: str = "1"
    model_paths: tuple[str, ...] = ()  # paths that it can serve
    tags: tuple[str, ...] = ()
    incarnation: str = ""
    memory_total: int = 0  # bytes
    devices: int = 0  # accelerators on all hosts; 0: as the topology says


@dataclass(frozen=True, slots=True, kw_only=True)
class ServableInfo:
    """A servable as reported by its server."""

    model_id: str
    status: ServableStatus
    version: str = ""
    reason: str = ""
    need: Need | None = None  # if loading failed for lack of memory or devices
    progress: Progress | None = None
    memory: int = 0  # bytes of weights, KV pages and workspace
    methods: tuple[str, ...] = ()  # lm.generate, ... of a loaded model
    queued: int = 0  # requests waiting for a slot
    running: int = 0  # requests in a slot
    arrived: int = 0  # total requests since it was loaded
    acls: Mapping[str, str] = field(default_factory=dict[str, str])  # enforced by the server
    note: str = ""  # where a loaded model does not do as its model path says


@dataclass(frozen=True, slots=True)
class Traffic:
    """A server's traffic over the last minute, all models and methods together."""

    pending: int = 0  # requests not yet answered
    errors_per_second: float = 0.0
    successes_per_second: float = 0.0
    mean_latency_s: float = 0.0  # of the successes


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """Answer to GetStatus."""

    servables: tuple[ServableInfo, ...]
    incarnation: str = ""
    memory_total: int = 0
    memory_used: int = 0
    dormant: bool = False  # a Saxml server that sleeps until woken
    traffic: Traffic = Traffic()
    draining: bool = False  # shuts down and takes no new requests


@dataclass(frozen=True, slots=True)
class JoinedServer:
    """A server as the admin lists it."""

    info: ServerInfo
    last_seen_s: float  # seconds since the epoch
    servables: tuple[ServableInfo, ...] = ()
    memory_used: int = 0
    dormant: bool = False
    traffic: Traffic = Traffic()


@dataclass(frozen=True, slots=True)
class ServerTypeStat:
    """Number of replicas on one machine type."""

    chip_type: str
    chip_topology: str
    replicas: int


@dataclass(frozen=True, slots=True)
class CellStats:
    """Replicas by machine type, and servers by model path."""

    types: tuple[ServerTypeStat, ...] = ()
    servers_by_model_path: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One immutable version of a published model: what is loaded."""

    version: str  # 32 hex digits
    checkpoint: str
    overrides: Mapping[str, str] = field(default_factory=dict[str, str])
    at_s: float = 0.0  # seconds since the epoch
    by: str = ""  # author; "" without authentication
    current: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One record of a cell's log, for auditing."""

    sequence: int
    at_s: float  # seconds since the epoch
    kind: str  # publish, update, rollback, unpublish, lead
    model_id: str = ""
    by: str = ""
    version: str = ""
    text: str = ""  # description of the change


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters. Every field is honoured or the request is refused."""

    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    seed: int | None = None  # u64; None: the server draws one
    max_tokens: int | None = None  # None: to the end of the context
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    # An answer that ends with these tokens ends there and keeps them; 0 stands for any token.
    stop_sequence: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # None: none; n: the chosen token's and the n most likely


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One generation request. The prompt is text, token ids, or a chat."""

    model_id: str
    prompt: str | tuple[int, ...] | tuple[Message, ...]
    sampling: SamplingParams = SamplingParams()
    request_id: str = ""
    account: str = ""  # whom it is for, of the users behind one caller; "": the caller
    priority: int = 0  # among the requests of one account; the lowest comes first


MOST_PRIORITY = 1000  # and the least is its negative

EmbedInput = str | Sequence[int]  # text or token ids


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors of one request's inputs, in order, and the inputs' total token count."""

    vectors: list[list[float]]
    prompt_tokens: int


class TokenLogprob(msgspec.Struct, frozen=True, gc=False):
    """A token, its log-probability under the unmodified logits, and its alternatives."""

    token_id: int
    token: str
    token_bytes: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()
    text_offset: int = 0  # characters of the answer before this token; 0 for an alternative


class TokenChunk(msgspec.Struct, frozen=True, gc=False):
    """Output of one request since the previous chunk. A Struct because one is made per token, and a
    dataclass would cost five times as much."""

    text: str  # whole characters only
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None  # "stop" or "length" in the last chunk
    prompt_tokens: int = 0
    completion_tokens: int = 0  # so far
    score: float = 0.0  # sum of log-probabilities so far
