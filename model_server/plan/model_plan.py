"""The result of a plan, as values and as JSON.

Bytes and FLOPs are per device (a chip has one or two).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    topology: str  # v5e:4x8
    chip: str
    hosts: int
    chips: int
    chips_per_host: int
    devices: int
    hbm_per_chip: int
    mesh: dict[str, int]  # devices per axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of one device, the maximum over the buckets."""

    limit: int  # that the compiler lets programs use
    weights: int
    arguments: int  # weights, pages and the step's inputs
    temporaries: int
    outputs: int  # not aliased to arguments
    code: int  # of all buckets together
    kv: int  # bytes of the compiled pool
    kv_pages: int  # in that pool
    kv_near_pages: int  # of layers with a window, which have as few of their own; 0: they have none
    kv_pages_free: int  # that would fit beside the programs' real needs
    kv_free: int  # bytes of those
    page_size: int

    @property
    def kv_tokens(self) -> int:
        return self.kv_pages * self.page_size

    @property
    def used(self) -> int:
        return self.arguments + self.temporaries + self.outputs + self.code


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketPlan:
    """One compiled program: a full step of it, at the plan's context."""

    decodes: int
    blocks: int
    tokens: int
    arguments: int
    temporaries: int
    outputs: int
    code: int  # at most
    flops: float  # counted from the model
    flops_compiled: float  # counted by the compiler, plus attention
    bytes: float  # weights and cache, each once
    bytes_compiled: float  # moved by the program, plus the cache
    open_loop_bytes: int  # of these: in loops of data-dependent length, counted once
    sent: dict[str, int]  # bytes to other chips, by kind of collective
    collectives: int
    seconds: float  # predicted from the roofline
    bound: str  # FLOPs, HBM, links
    compile_seconds: float

    @property
    def efficiency(self) -> float:
        """Bytes that the program moves, divided by the unavoidable ones."""
        return self.bytes_compiled / self.bytes

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return max(self.flops, self.flops_compiled) / max(self.bytes, self.bytes_compiled)

    @property
    def rate(self) -> float:
        """Predicted FLOP per second of one device."""
        return max(self.flops, self.flops_compiled) / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """Predicted speed of a batch of sequences."""

    batch: int
    context: int  # cached tokens of each
    longest: int  # tokens that each may have if the batch shares all pages
    seconds: float  # of a step
    tokens_per_second: float
    per_chip: float
    bound: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTokenPlan:
    """Predicted time of one draft token for each of some sequences."""

    rows: int  # sequences
    seconds: float
    bound: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPlan:
    """A draft model beside the model; its bytes are also in those of the plan."""

    model: str
    parameters: int
    weights: int  # bytes per device
    kv: int  # bytes per device of its part of the pages
    draft_tokens: list[DraftTokenPlan]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """Predicted time to the first token of a lone prompt."""

    prompt: int  # tokens
    steps: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """Everything `sax plan` shows."""

    model: str
    path: str
    parameters: int
    slots: int
    max_context: int
    context: int  # cached tokens of a sequence, for bytes and speeds
    slice: Slice
    fits: bool
    problem: str | None = None  # why it does not fit
    advice: list[str] = field(default_factory=list)  # what to change
    notes: list[str] = field(default_factory=list)
    memory: Memory | None = None  # None: nothing was compiled
    draft: DraftPlan | None = None  # None: there is none, or nothing was compiled
    buckets: list[BucketPlan] = field(default_factory=list)
    decoding: list[Decoding] = field(default_factory=list)
    first_token: list[FirstToken] = field(default_factory=list)
    planning_seconds: float = 0.0

    def as_value(self) -> dict[str, Any]:
        """Return the plan for programs; every speed is under `predicted`."""
        made = asdict(self)
        made["predicted"] = {key: made.pop(key) for key in ("decoding", "first_token")}
        if self.draft is not None:
            made["predicted"]["guesses"] = made["draft"].pop("draft_tokens")
        if self.memory is not None:
            made["memory"] |= {"kv_tokens": self.memory.kv_tokens, "used": self.memory.used}
        for text, bucket in zip(made["buckets"], self.buckets, strict=True):
            seconds, bound = text.pop("seconds"), text.pop("bound")
            text["efficiency"] = bucket.efficiency
            text["intensity"] = bucket.intensity
            text["predicted"] = {"seconds": seconds, "bound": bound}
        return made
