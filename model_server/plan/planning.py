"""Turn the compiler's measurements into a plan. Compiles nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from model_server.engine.buckets import Bucket, choose
from model_server.loading.capacity import cache_of, weight_bytes
from model_server.models.weights.sharding import split_heads
from model_server.plan.anatomy import Anatomy
from model_server.plan.compiled import Measured
from model_server.plan.model_plan import BucketPlan, Decoding, FirstToken, Memory, ModelPlan, Slice
from model_server.plan.roofline import DeviceWork, Roofline, roofline
from model_server.plan.target import Target
from model_server.plan.work import Work, work_of

_USUAL_CONTEXT = 2048  # tokens: prompt and answer of a chat
_PROMPTS = (128, 1024, 8192, 32768)


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A bucket at a context."""

    work: Work
    compiled_flops: float
    compiled_bytes: float
    roof: Roofline


def usual_context(target: Target) -> int:
    """Return the default context for speeds: each slot's share of the pages, at most a chat."""
    fair = target.limits.pages * target.limits.page_size // target.limits.slots
    return max(1, min(_USUAL_CONTEXT, target.limits.max_context, fair))


def make_plan(
    target: Target, anatomy: Anatomy, measured: Sequence[Measured], context: int
) -> ModelPlan:
    """Make the plan of a target whose every bucket compiled."""
    by_bucket = {each.bucket: each for each in measured}
    memory = memory_of(target, measured)
    return ModelPlan(
        **headings(target, context),
        fits=True,
        notes=notes_of(target, anatomy),
        memory=memory,
        buckets=[_bucket(target, anatomy, each, context) for each in measured],
        decoding=list(_decoding(target, anatomy, by_bucket, context)),
        first_token=list(_first_tokens(target, anatomy, by_bucket)),
    )


def headings(target: Target, context: int) -> dict:
    """Return the fields of a plan that do not depend on whether it fits."""
    topology = target.topology
    return {
        "model": target.title,
        "path": target.path,
        "parameters": sum(math.prod(each.shape) for each in target.blueprint.declarations),
        "slots": target.limits.slots,
        "max_context": target.limits.max_context,
        "context": context,
        "slice": slice_of(topology, dict(target.layout.mesh.shape)),
    }


def slice_of(topology, mesh: dict[str, int]) -> Slice:
    return Slice(
        topology=topology.name,
        chip=topology.chip.name,
        hosts=topology.hosts,
        chips=topology.chips,
        chips_per_host=topology.chips_per_host,
        devices=len(topology.devices),
        hbm_per_chip=topology.chip.hbm,
        mesh=mesh,
    )


def memory_of(target: Target, measured: Sequence[Measured]) -> Memory:
    """Return the memory that the programs take, and the pages that fit beside them."""
    page = target.planned.kv // (target.planned.pages + 1)
    limit = target.config.memory_limit_bytes or 0
    code = sum(each.code for each in measured)
    steps = [each.arguments + each.temporaries + each.outputs for each in measured]
    without_pages = max(steps) - target.planned.kv + code
    most = max(measured, key=lambda each: each.arguments + each.temporaries + each.outputs)
    return Memory(
        limit=limit,
        weights=weight_bytes(target.blueprint, target.layout),
        arguments=most.arguments,
        temporaries=most.temporaries,
        outputs=most.outputs,
        code=code,
        kv_page=page,
        kv_pages=target.planned.pages,
        kv_pages_free=max(0, (limit - without_pages) // page - 1),
        page_size=target.limits.page_size,
    )


def step_of(target: Target, anatomy: Anatomy, measured: Measured, context: int) -> PlannedStep:
    """Combine the compiled program with our own count; the larger of each bounds the step.

    The program's text does not show what a kernel reads of the cache, and counts a loop over it
    once: so the cache is added to its bytes, attention to its FLOPs.
    """
    work = work_of(target, anatomy, measured.bucket, context)
    flops = measured.flops + work.attention_flops
    moved = float(measured.traffic.moved.total + work.cache)
    load = DeviceWork(
        flops=max(work.flops, flops),
        bytes=max(work.bytes, moved),
        sent=sum(measured.traffic.sent.values()),
    )
    return PlannedStep(work, flops, moved, roofline(load, target.topology.chip))


def notes_of(target: Target, anatomy: Anatomy) -> list[str]:
    """Return warnings about a plan that fits."""
    return [
        note for note in (_unlent(target), _unused(target), _whole_heads(target, anatomy)) if note
    ]


def _bucket(target: Target, anatomy: Anatomy, each: Measured, context: int) -> BucketPlan:
    step = step_of(target, anatomy, each, context)
    return BucketPlan(
        decodes=each.bucket.decodes,
        blocks=each.bucket.blocks,
        tokens=each.bucket.tokens(target.limits.prefill_block),
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


def _decoding(target: Target, anatomy: Anatomy, by_bucket: dict[Bucket, Measured], context: int):
    limits = target.limits
    for bucket in (each for each in target.buckets if not each.blocks):
        if bucket.decodes > limits.slots and bucket.decodes > 2:
            continue
        step = step_of(target, anatomy, by_bucket[bucket], context)
        speed = bucket.decodes / step.roof.seconds
        share = limits.pages // bucket.decodes * limits.page_size
        yield Decoding(
            batch=bucket.decodes,
            context=context,
            longest=min(limits.max_context, share),
            seconds=step.roof.seconds,
            tokens_per_second=speed,
            per_chip=speed / target.topology.chips,
            bound=step.roof.bound,
        )


def _first_tokens(target: Target, anatomy: Anatomy, by_bucket: dict[Bucket, Measured]):
    room = min(target.limits.max_context - 1, target.limits.pages * target.limits.page_size)
    for prompt in sorted({min(prompt, room) for prompt in _PROMPTS}):
        yield _first_token(target, anatomy, by_bucket, prompt)


def _first_token(
    target: Target, anatomy: Anatomy, by_bucket: dict[Bucket, Measured], prompt: int
) -> FirstToken:
    """Sum the steps of a prompt that runs alone."""
    block, most = target.limits.prefill_block, target.limits.max_prefill_blocks or 1
    done, steps, seconds = 0, 0, 0.0
    while done < prompt:
        blocks = min(most, -(-(prompt - done) // block))
        bucket = choose(target.buckets, 0, blocks, block)
        done = min(prompt, done + blocks * block)
        seconds += step_of(target, anatomy, by_bucket[bucket], done).roof.seconds
        steps += 1
    return FirstToken(prompt=prompt, steps=steps, seconds=seconds)


def _unlent(target: Target) -> str | None:
    topology = target.topology
    if topology.is_lent:
        return None
    return f"Google Cloud is not known to offer the slice {topology.name}"


def _unused(target: Target) -> str | None:
    used, there = target.layout.mesh.size, len(target.topology.devices)
    if used == there:
        return None
    shape = list(target.layout.mesh.shape.values())
    return (
        f"the mesh {shape} uses {used} of the {there} devices: the others are idle; override "
        f"ICI_MESH_SHAPE=[1,1,{there}] to use all"
    )


def _whole_heads(target: Target, anatomy: Anatomy) -> str | None:
    shards = target.layout.shards("heads")
    heads, kv_heads = anatomy.heads, anatomy.kv_heads
    cached = cache_of(target.recipe, target.layout)
    if shards == 1 or split_heads(heads, kv_heads, shards).sharded and cached.axis:
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
