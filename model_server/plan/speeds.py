"""Predict the time of every step from the roofline of a chip.

A step computes, accesses memory and talks to other chips, at best all at once: the slowest of the
three is the minimum time (Williams et al. 2009, doi:10.1145/1498765.1498785). Program launches and
waits for the slowest chip are not included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from model_server.engine.buckets import Bucket, choose
from model_server.models.weights.sharding import split_heads
from model_server.plan.compiled import Measured
from model_server.plan.model_plan import BucketPlan, Decoding, FirstToken
from model_server.plan.slices import Chip
from model_server.plan.topology import Topology
from model_server.plan.work import StepWork, Workload

_PROMPTS = (128, 1024, 8192, 32768)
BOUNDS = ("FLOPs", "HBM", "links")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWork:
    """Work of one device in one step."""

    flops: float
    bytes: float  # to and from HBM
    sent: float  # bytes to other chips


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Seconds that each of the three takes alone."""

    computing: float
    reading: float
    sending: float

    @property
    def seconds(self) -> float:
        return max(self.computing, self.reading, self.sending)

    @property
    def bound(self) -> str:
        """FLOPs, HBM or links."""
        times = (self.computing, self.reading, self.sending)
        return BOUNDS[times.index(max(times))]


def roofline(load: DeviceWork, chip: Chip) -> Roofline:
    return Roofline(
        computing=load.flops / chip.device_flops,
        reading=load.bytes / chip.device_hbm_rate,
        sending=load.sent / chip.device_link_rate,
    )


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A bucket at a context."""

    work: StepWork
    compiled_flops: float
    compiled_bytes: float
    roof: Roofline


def planned_step(work: Workload, chip: Chip, measured: Measured, context: int) -> PlannedStep:
    """Combine the compiled program with our own count; the larger of each bounds the step.

    The program's text does not show what a kernel reads of the cache, and counts a loop over it
    once: so the cache is added to its bytes, attention to its FLOPs. So are states that a kernel
    takes. Nor does it show which experts a kernel reads: those that no token chooses are taken from
    its bytes.
    """
    least = work.of(measured.bucket, context)
    flops = measured.flops + least.attention_flops
    traffic = measured.traffic.moved
    moved = float(traffic.total + least.unseen - min(least.untouched, traffic.kernels))
    load = DeviceWork(
        flops=max(least.flops, flops),
        bytes=max(least.bytes, moved),
        sent=sum(measured.traffic.sent.values()),
    )
    return PlannedStep(least, flops, moved, roofline(load, chip))


class Speeds:
    """Speeds of a deployment whose every bucket is measured."""

    def __init__(self, work: Workload, topology: Topology, measured: Sequence[Measured]) -> None:
        self._work, self._topology = work, topology
        self._deployment = work.deployment
        self._measured = {each.bucket: each for each in measured}

    def buckets(self, context: int) -> list[BucketPlan]:
        return [self._bucket(each, context) for each in self._measured.values()]

    def decoding(self, context: int) -> Iterator[Decoding]:
        limits = self._deployment.limits
        for bucket in (each for each in self._deployment.buckets if not each.blocks):
            if bucket.decodes > limits.slots and bucket.decodes > 2:
                continue
            roof = self._step(bucket, context).roof
            speed = bucket.decodes / roof.seconds
            share = limits.pages // bucket.decodes * limits.page_size
            yield Decoding(
                batch=bucket.decodes,
                context=context,
                longest=min(limits.max_context, share),
                seconds=roof.seconds,
                tokens_per_second=speed,
                per_chip=speed / self._topology.chips,
                bound=roof.bound,
            )

    def first_tokens(self) -> Iterator[FirstToken]:
        limits = self._deployment.limits
        room = min(limits.max_context - 1, limits.pages * limits.page_size)
        for prompt in sorted({min(prompt, room) for prompt in _PROMPTS}):
            yield self._first_token(prompt)

    def _first_token(self, prompt: int) -> FirstToken:
        limits = self._deployment.limits
        block, most = limits.prefill_block, limits.max_prefill_blocks or 1
        done, steps, seconds = 0, 0, 0.0
        while done < prompt:
            blocks = min(most, -(-(prompt - done) // block))
            bucket = choose(self._deployment.buckets, 0, blocks, block)
            done = min(prompt, done + blocks * block)
            seconds += self._step(bucket, done).roof.seconds
            steps += 1
        return FirstToken(prompt=prompt, steps=steps, seconds=seconds)

    def _step(self, bucket: Bucket, context: int) -> PlannedStep:
        return planned_step(self._work, self._topology.chip, self._measured[bucket], context)

    def _bucket(self, each: Measured, context: int) -> BucketPlan:
        step = self._step(each.bucket, context)
        return BucketPlan(
            decodes=each.bucket.decodes,
            blocks=each.bucket.blocks,
            tokens=each.bucket.tokens(self._deployment.limits.prefill_block),
            arguments=each.arguments,
            temporaries=each.temporaries,
            outputs=each.outputs,
            code=each.code,
            flops=step.work.flops,
            flops_compiled=step.compiled_flops,
            bytes=step.work.bytes,
            bytes_compiled=step.compiled_bytes,
            open_loop_bytes=each.traffic.moved.open_loops,
            sent=each.traffic.sent,
            collectives=each.traffic.exchanges,
            seconds=step.roof.seconds,
            bound=step.roof.bound,
            compile_seconds=each.seconds,
        )


def notes_of(work: Workload, topology: Topology) -> list[str]:
    """Return warnings about a plan that fits, mostly about what makes it slower."""
    notes = (_unlent(topology), _unused(work, topology), _whole_heads(work))
    return [note for note in notes if note]


def _unlent(topology: Topology) -> str | None:
    if topology.is_lent:
        return None
    return f"Google Cloud is not known to offer the slice {topology.name}"


def _unused(work: Workload, topology: Topology) -> str | None:
    mesh, there = work.deployment.layout.mesh, len(topology.devices)
    if mesh.size == there:
        return None
    return (
        f"the mesh {list(mesh.shape.values())} uses {mesh.size} of the {there} devices: the others "
        f"are idle; override ICI_MESH_SHAPE=[1,1,{there}] to use all"
    )


def _whole_heads(work: Workload) -> str | None:
    shards, cached = work.deployment.layout.shards("heads"), work.deployment.cache
    heads, kv_heads = work.anatomy.heads, work.anatomy.kv_heads
    if shards == 1 or not heads:
        return None
    if split_heads(heads, kv_heads, shards).sharded and cached.axis:
        return None
    if cached.value_dim == 0 and heads % shards == 0:
        return None  # a latent is shared by all heads and replicated by design
    fitting = max(
        count for count in range(1, shards + 1) if shards % count == 0 and heads % count == 0
    )
    return (
        f"{heads} heads ({kv_heads} KV heads) do not divide over {shards} devices: every device "
        "holds all of the attention's weights, keys and values; override "
        f"ICI_MESH_SHAPE=[1,{shards // fitting},{fitting}] to divide them by {fitting}"
    )
