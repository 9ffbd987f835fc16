"""The values two processes must agree on. No wire format here (see `sax.codec`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from sax.need import Need


class ServableStatus(StrEnum):
    """Where a model is in the life of one model server (Saxml's ModelStatus)."""

    NONE = "none"
    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"
    UNLOADING = "unloading"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a long wait is: phase "compiling bucket", 3 of 8."""

    phase: str
    done: int = 0
    total: int = 0
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaling:
    """Between which bounds the number of replicas follows the load."""

    min_replicas: int = 1  # 0: none while nobody asks
    max_replicas: int = 1
    target_queue: float = 1.0  # requests that wait, for each ready replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What a server must have to be given a replica, beyond the model path."""

    tags: tuple[str, ...] = ()  # all of them
    devices: int = 0  # in one slice; 0: any number
    memory: int = 0  # bytes of the whole server; 0: as learned from servers that loaded it


ANYWHERE = Placement()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What an operator published."""

    model_id: str  # /sax/<cell>/<model>
    model_path: str
    checkpoint: str
    replicas: int
    overrides: Mapping[str, str] = field(default_factory=dict[str, str])  # value: JSON text
    acls: Mapping[str, str] = field(default_factory=dict[str, str])  # method -> acl
    admin_acl: str = ""
    version: str = ""  # 32 hex digits; new whenever what is loaded changes
    revision: int = 0  # number of the record that last changed it; 0: not known
    autoscaling: Autoscaling | None = None  # None: as many replicas as `replicas` says
    placement: Placement = ANYWHERE


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One wanted replica and what became of it."""

    address: str  # "" while no server was found
    status: ServableStatus
    reason: str = ""  # why it is not ready, in words
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A spec and its replicas, as the admin lists them."""

    spec: ModelSpec
    replicas: tuple[ReplicaStatus, ...] = ()
    methods: tuple[str, ...] = ()
    wanted: int = 0  # replicas aimed at now; differs from spec.replicas under autoscaling
    scaling_reason: str = ""  # why it is that many; empty without autoscaling

    @property
    def ready_replicas(self) -> int:
        return sum(replica.status is ServableStatus.LOADED for replica in self.replicas)

    @property
    def wanted_replicas(self) -> int:
        """How many are aimed at now; an admin that knows no autoscaling tells in the spec."""
        return self.wanted if self.spec.autoscaling else self.spec.replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """What a model server says of itself when it joins."""

    address: str  # host:port of Modelet and LMService
    data_address: str = ""  # where requests go, if elsewhere
    debug_address: str = ""
    chip_type: str = "cpu"  # Saxml's flag values: cpu, tpuv5e, h100, ...
    chip_topology: str = "1"
    model_paths: tuple[str, ...] = ()  # what it can serve
    tags: tuple[str, ...] = ()
    incarnation: str = ""
    memory_total: int = 0  # bytes
    devices: int = 0  # accelerators, all hosts together; 0: as the topology says


@dataclass(frozen=True, slots=True, kw_only=True)
class ServableInfo:
    """One model as its server sees it."""

    model_id: str
    status: ServableStatus
    version: str = ""
    reason: str = ""
    need: Need | None = None  # of one that failed for want of room
    progress: Progress | None = None
    memory: int = 0  # bytes of weights, KV pages and workspace
    methods: tuple[str, ...] = ()  # lm.generate, ...: what a loaded model serves
    queued: int = 0  # requests that wait for a slot
    running: int = 0  # requests that have one
    arrived: int = 0  # requests since it was loaded, those answered long ago included
    acls: Mapping[str, str] = field(default_factory=dict[str, str])  # as the server enforces them


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a server did in the last minute, all models and methods together."""

    pending: int = 0  # requests it has and has not answered
    errors_per_second: float = 0.0
    successes_per_second: float = 0.0
    mean_latency_s: float = 0.0  # of the successes


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The answer to GetStatus."""

    servables: tuple[ServableInfo, ...]
    incarnation: str = ""
    memory_total: int = 0
    memory_used: int = 0
    dormant: bool = False  # a Saxml server that sleeps until it is woken
    traffic: Traffic = Traffic()


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
    """How many replicas run on one kind of machine."""

    chip_type: str
    chip_topology: str
    replicas: int


@dataclass(frozen=True, slots=True)
class CellStats:
    """What a cell runs on, and how many of its servers can serve each model path."""

    types: tuple[ServerTypeStat, ...] = ()
    servers_by_model_path: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of a published model: what is loaded. Never changes."""

    version: str  # 32 hex digits
    checkpoint: str
    overrides: Mapping[str, str] = field(default_factory=dict[str, str])
    at_s: float = 0.0  # seconds since the epoch
    by: str = ""  # who made it; "" where nobody proves who they are
    current: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One record of a cell's log, as an auditor reads it."""

    sequence: int
    at_s: float  # seconds since the epoch
    kind: str  # publish, update, rollback, unpublish, lead
    model_id: str = ""
    by: str = ""
    version: str = ""
    text: str = ""  # what changed, in words


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens. Every field is honoured or the request is refused."""

    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    seed: int | None = None  # u64; None: the server draws one
    max_tokens: int | None = None  # None: to the end of the context
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # None: none; n: the chosen token's and the n likeliest


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One question to one model. The prompt is text, token ids, or a chat."""

    model_id: str
    prompt: str | tuple[int, ...] | tuple[Message, ...]
    sampling: SamplingParams = SamplingParams()
    request_id: str = ""


EmbedInput = str | Sequence[int]  # text, or the token ids a model reads


@dataclass(frozen=True, slots=True)
class Embedded:
    """The vectors of one request's inputs, in order, and what the inputs were together."""

    vectors: list[list[float]]
    prompt_tokens: int


class TokenLogprob(msgspec.Struct, frozen=True, gc=False):
    """A token, its log-probability under the unmodified logits, and its rivals."""

    token_id: int
    token: str
    token_bytes: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


class TokenChunk(msgspec.Struct, frozen=True, gc=False):
    """What one request gained since the chunk before. A Struct: one is made per token, which as a
    dataclass would cost five times as much."""

    text: str  # whole characters only
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None  # "stop" or "length" in the last chunk
    prompt_tokens: int = 0
    completion_tokens: int = 0  # so far
    score: float = 0.0  # sum of log-probabilities so far
