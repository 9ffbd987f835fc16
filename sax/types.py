"""Values shared between processes. `sax.wire` has the wire format."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from sax.activity import IDLE, Activity
from sax.chat import PLAIN_CHAT as PLAIN_CHAT
from sax.chat import AnswerFormat as AnswerFormat
from sax.chat import ChatOptions as ChatOptions
from sax.chat import Image as Image
from sax.chat import Message as Message
from sax.chat import Sound as Sound
from sax.chat import Tool as Tool
from sax.chat import ToolCall as ToolCall
from sax.chat import Video as Video
from sax.fields.sampling import MOST_PRIORITY as MOST_PRIORITY
from sax.fields.sampling import SamplingParams as SamplingParams
from sax.memory_parts import MemoryParts
from sax.need import Need
from sax.passes import ChatInput as ChatInput
from sax.passes import EmbedInput as EmbedInput
from sax.passes import PairInput as PairInput
from sax.routed_experts import RoutedExpertIds
from sax.weights import WeightRun


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
class Canary:
    """A version that serves a share of the requests beside the model's own."""

    version: str  # 32 hex digits
    checkpoint: str
    overrides: Mapping[str, str] = field(default_factory=dict[str, str])  # value: JSON text
    percent: float  # of the requests, between 0 and 100


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
    canary: Canary | None = None
    # Known to admin servers only: the version of the canary aborted last, whose replicas are the
    # last choice while they are there; and the percentage at which `version` was promoted, if it
    # was a canary: its sessions stay with it until all replicas have it.
    aborted: str = ""
    promoted: float = 0.0


def static_version(spec: ModelSpec) -> str:
    """Return the version of a model that a server loads by its own flags: the same for the same
    path, checkpoint and overrides, and no version that an admin server draws."""
    path = spec.model_path.removeprefix("saxml.server.")
    settings = {name: _canonical(text) for name, text in spec.overrides.items()}
    made_of = json.dumps([path, spec.checkpoint, settings], sort_keys=True)
    return hashlib.blake2b(made_of.encode(), digest_size=16).hexdigest()


def _canonical(text: str) -> str:
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except ValueError:
        return text


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """Status of one wanted replica."""

    address: str  # "" until a server is assigned
    status: ServableStatus
    reason: str = ""  # why it is not ready
    progress: Progress | None = None
    note: str = ""  # where a ready one does not do as its model path says
    canary: bool = False  # it is, or is to be, of the canary's version


@dataclass(frozen=True, slots=True)
class CanaryShare:
    """The ready replicas of a canary's version, and the share of the requests that they get: 0 once
    it was aborted; once it was promoted, their share of all replicas, and no less than before."""

    version: str  # 32 hex digits
    percent: float
    addresses: frozenset[str]


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A spec and its replicas, as the admin lists them."""

    spec: ModelSpec
    replicas: tuple[ReplicaStatus, ...] = ()
    methods: tuple[str, ...] = ()
    # Replicas wanted now; differs from spec.replicas under autoscaling or with a canary.
    wanted: int = 0
    scaling_reason: str = ""  # why that number; empty without autoscaling
    max_context: int = 0  # tokens of one sequence that every ready replica has room for; 0: unknown
    warnings: tuple[str, ...] = ()  # of overrides without effect, or that nobody could check
    published_at_s: float = 0.0  # seconds since the epoch, of the current version; 0: unknown

    @property
    def ready_replicas(self) -> int:
        return sum(replica.status is ServableStatus.LOADED for replica in self.replicas)

    @property
    def ready_canaries(self) -> int:
        return sum(r.canary and r.status is ServableStatus.LOADED for r in self.replicas)

    @property
    def notes(self) -> tuple[str, ...]:
        """Differences of ready replicas from what the model path promises, each text once."""
        return tuple(dict.fromkeys(replica.note for replica in self.replicas if replica.note))

    @property
    def wanted_replicas(self) -> int:
        """Replicas wanted now; an admin without autoscaling reports them in the spec."""
        told = self.spec.autoscaling is not None or self.spec.canary is not None
        return self.wanted if told else self.spec.replicas


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
    parts: MemoryParts = MemoryParts()  # of `memory`; all 0 from a server that does not tell
    methods: tuple[str, ...] = ()  # lm.generate, ... of a loaded model
    queued: int = 0  # requests waiting for a slot
    running: int = 0  # requests in a slot
    arrived: int = 0  # total requests since it was loaded
    acls: Mapping[str, str] = field(default_factory=dict[str, str])  # enforced by the server
    note: str = ""  # where a loaded model does not do as its model path says
    kernels: str = ""  # that compute a loaded model; "": the server does not tell
    activity: Activity = IDLE
    own: bool = False  # loaded by the server's own flags, not for an admin server


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
class Overview:
    """All of a cell at one time."""

    models: tuple[PublishedModel, ...] = ()
    servers: tuple[JoinedServer, ...] = ()


@dataclass(frozen=True, slots=True)
class Rights:
    """Changes that a caller may make in a cell."""

    publish: bool = False  # publish, update and unpublish any model
    models: frozenset[str] = frozenset()  # else those that it may update and unpublish

    def may_change(self, model_id: str) -> bool:
        return self.publish or model_id in self.models


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
    kind: str  # publish, update, canary, promote, abort, rollback, unpublish, lead
    model_id: str = ""
    by: str = ""
    version: str = ""
    text: str = ""  # description of the change


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyOptions:
    """Options for reading the prompt, and for what a reply holds (vLLM's names)."""

    echo: bool = False  # the prompt's text comes before the answer's
    prompt_logprobs: int | None = None  # as `logprobs`, of the prompt's tokens
    return_token_ids: bool = False  # the first chunk has the prompt's, too
    return_routed_experts: bool = False  # the last chunk has those of each token
    truncate_prompt_tokens: int | None = None  # keep the last k; -1: as many as leave room
    add_special_tokens: bool | None = None  # a start token; None: for a text, not for a chat
    skip_special_tokens: bool = True  # control tokens have no text
    include_stop_str_in_output: bool = False  # the text ends with what stopped it
    suffix: str | None = None  # text behind the answer, which then fills the middle


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSoFar:
    """The part of an answer that its client has, of a replica that did not finish it."""

    token_ids: tuple[int, ...] = ()
    score: float = 0.0  # sum of their log-probabilities
    prompt_logprobs: int = 0  # entries that the client has
    version: str = ""  # of the model that chose them; "": not known
    traceparent: str = ""  # its span, if that replica traced it


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One generation request. The prompt is text, token ids, or a chat."""

    model_id: str
    prompt: str | tuple[int, ...] | tuple[Message, ...]
    sampling: SamplingParams = SamplingParams()
    reply: ReplyOptions = ReplyOptions()
    chat: ChatOptions = PLAIN_CHAT  # of a chat; a prompt of another kind has none
    request_id: str = ""
    account: str = ""  # whom it is for, of the users behind one caller; "": the caller
    priority: int = 0  # among the requests of one account; the lowest comes first
    # Only requests with the same one share the keys and values of tokens with which both begin.
    cache_salt: str = ""
    timeout_s: float | None = None  # to the end of the answer, waiting included; None: no limit
    # Requests with the same one go to one replica and version, if it is not clearly busier; stays
    # with the client. "": the prompt decides.
    session: str = ""
    # Go on after this instead of beginning; `sampling` is the whole answer's, with its seed.
    answer: AnswerSoFar | None = None
    traceparent: str = ""  # of W3C's trace context: the span that this belongs to; "": untraced


@dataclass(frozen=True, slots=True)
class SaxmlSamples:
    """Texts of one Saxml request with their scores, best first, and what they took."""

    texts: list[tuple[str, float]]
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Tokenized:
    """The token ids of a prompt, the text of each, and the context length of the model."""

    ids: tuple[int, ...]
    max_context: int
    token_texts: tuple[str, ...] = ()


class TokenLogprob(msgspec.Struct, frozen=True, gc=False):
    """A token, its log-probability under the unmodified logits, and its alternatives.

    The log-probability of a prompt's first token is not a number: it follows nothing.
    """

    token_id: int
    token: str
    token_bytes: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()
    # Characters before this token: of the answer, or of prompt and answer if the prompt is echoed;
    # of the prompt for its own tokens; 0 for an alternative.
    text_offset: int = 0
    rank: int = 0  # of a prompt's token, 1: the likeliest; 0: not known


class HypothesisText(msgspec.Struct, frozen=True, gc=False):
    """An answer that a beam search found."""

    text: str
    token_ids: tuple[int, ...] = ()  # the end token included
    score: float = 0.0  # sum of log-probabilities, normalised by the length
    stop_token_id: int | None = None  # that ended it, if it is none of the model's own


class TokenChunk(msgspec.Struct, frozen=True, gc=False):
    """Output of one request since the chunk before. A Struct: a class takes five times as long."""

    text: str  # whole characters only
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None  # "stop" or "length" in the last chunk
    prompt_tokens: int = 0
    completion_tokens: int = 0  # so far
    score: float = 0.0  # sum of log-probabilities so far
    cached_tokens: int = 0  # of the prompt: found in the prefix cache, not computed
    prompt_logprobs: tuple[TokenLogprob, ...] = ()  # of the prompt's next tokens, if asked for
    prompt_token_ids: tuple[int, ...] = ()  # in the first chunk, with `return_token_ids`
    stop_reason: int | str | None = None  # in the last chunk: the stop token or string, if any
    seed: int | None = None  # in the first chunk: the one that was used
    # Of a beam search, in its only chunk, which is otherwise that of the first: best first.
    hypotheses: tuple[HypothesisText, ...] = ()
    version: str = ""  # in the first chunk: of the model that answers; "": not known
    answer_format: AnswerFormat | None = None  # in the first chunk, if the chat is to be divided
    queue_s: float = 0.0  # with the first token: seconds in the queue; 0: not known
    traceparent: str = ""  # with the first token: the answer's span, if the request is traced
    reasoning_tokens: int = 0  # so far, among the completion's; counted of divided answers alone
    schema_violation: str = ""  # in the last chunk: how it breaks its schema beyond grammars
    # In the last chunk, if the model's weights were changed in place: which computed its tokens.
    weights: tuple[WeightRun, ...] = ()
    routed_experts: RoutedExpertIds | None = None  # in the last chunk, if they were asked for

    def joined(self, after: TokenChunk) -> TokenChunk:
        """Return this chunk and the one after it as one."""
        return replace(
            after,
            text=self.text + after.text,
            token_ids=self.token_ids + after.token_ids,
            logprobs=self.logprobs + after.logprobs,
            prompt_logprobs=self.prompt_logprobs + after.prompt_logprobs,
            prompt_token_ids=self.prompt_token_ids + after.prompt_token_ids,
            seed=self.seed if after.seed is None else after.seed,
            version=self.version or after.version,
            answer_format=after.answer_format or self.answer_format,
            queue_s=after.queue_s or self.queue_s,
            traceparent=after.traceparent or self.traceparent,
        )
