"""Unavoidable work of one step on one device: FLOPs, and bytes of weights and cache.

Arithmetic on shapes, to complement the compiled program, whose text does not show the inside of
kernels and counts a loop of data-dependent length once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from model_server.engine.buckets import Bucket
from model_server.loading.capacity import cache_of
from model_server.models.weights.sharding import bytes_per_device
from model_server.models.weights.weight import Declaration
from model_server.plan.anatomy import Anatomy, layer_at
from model_server.plan.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of one step on one device."""

    flops: int  # of all matrix products
    attention_flops: int  # of these: between queries and the cache
    weights: int  # bytes read
    cache: int  # bytes read and written

    @property
    def bytes(self) -> int:
        return self.weights + self.cache


def work_of(target: Target, anatomy: Anatomy, bucket: Bucket, context: int) -> Work:
    """Return the work of a full step of this bucket with `context` tokens cached per sequence.

    The prompt blocks of a step are the last ones of a prompt of that length.
    """
    prompt = bucket.blocks * target.limits.prefill_block
    tokens, rows = bucket.decodes + prompt, bucket.decodes + (1 if prompt else 0)
    weights = flops = 0
    for declared in target.blueprint.declarations:
        read, computed = _of_weight(target, anatomy, declared, tokens, rows)
        weights, flops = weights + read, flops + computed
    before = max(0, context - prompt)  # tokens cached before the step's first prompt block
    queried = bucket.decodes * anatomy.seen(context)
    if prompt:
        queried += sum(
            target.limits.prefill_block
            * anatomy.seen(before + (block + 1) * target.limits.prefill_block)
            for block in range(bucket.blocks)
        )
    attended = queried * _flops_per_token(target, anatomy)
    return Work(
        flops=flops + attended,
        attention_flops=attended,
        weights=weights,
        cache=_cache_bytes(target, anatomy, bucket, context, before),
    )


def flops_ratio(target: Target, anatomy: Anatomy, bucket: Bucket, layers: int) -> float:
    """Return the FLOPs of all weights in a step divided by those of the first `layers` layers."""
    tokens = bucket.tokens(target.limits.prefill_block)
    rows = bucket.decodes + (1 if bucket.blocks else 0)
    all_of_it = compiled = 0
    for declared in target.blueprint.declarations:
        flops = _of_weight(target, anatomy, declared, tokens, rows)[1]
        all_of_it += flops
        compiled += flops if (layer_at(declared.path) or 0) < layers else 0
    return all_of_it / max(1, compiled)


def weights_of(target: Target, anatomy: Anatomy, tokens: int) -> int:
    """Return the bytes of weights that a step of `tokens` tokens reads on one device."""
    return sum(
        _of_weight(target, anatomy, declared, tokens, tokens)[0]
        for declared in target.blueprint.declarations
    )


def cached_token_bytes(target: Target) -> float:
    """Return the bytes of one token in one layer, on one device."""
    page = target.planned.kv / (target.planned.pages + 1)
    layers = cache_of(target.recipe, target.layout).layers
    return page / target.limits.page_size / layers


def expected_experts(experts: int, chosen: int, tokens: int) -> float:
    """Return the expected number of distinct experts, if all are equally likely."""
    return experts * (1 - (1 - min(1.0, chosen / experts)) ** tokens)


def _of_weight(
    target: Target, anatomy: Anatomy, declared: Declaration, tokens: int, rows: int
) -> tuple[int, int]:
    """Bytes read and FLOPs of one weight."""
    held, first = _held(target, declared), next(iter(declared.shape), 1)
    multiplied = 2 * _share(target, declared) if len(declared.shape) > 1 else 0
    if _is_looked_up(target, declared):
        return held * min(tokens, first) // first, 0
    if "vocab" in declared.axes:
        return held, multiplied * rows
    if "experts" in declared.axes and anatomy.experts_per_token:
        chosen = anatomy.experts_per_token
        touched = expected_experts(first, chosen, tokens) / first
        return int(held * touched), multiplied * tokens * chosen // first
    return held, multiplied * tokens


def _is_looked_up(target: Target, declared: Declaration) -> bool:
    """True for tables of which a step reads single rows; a tied embedding is the head too."""
    if declared.path.startswith("positions"):
        return True
    has_head = any(other.path.startswith("head.") for other in target.blueprint.declarations)
    return declared.path.startswith("embedding") and has_head


def _held(target: Target, declared: Declaration) -> int:
    layout = target.layout
    return sum(
        bytes_per_device(leaf.shape, leaf.bits, layout.sharding(leaf.shape, leaf.axes, leaf.bits))
        for leaf in declared.leaves
    )


def _share(target: Target, declared: Declaration) -> int:
    """Number of elements of a weight that one device multiplies with."""
    first = declared.leaves[0]
    sharding = target.layout.sharding(first.shape, first.axes, first.bits)
    part = math.prod(sharding.shard_shape(first.shape)) / math.prod(first.shape)
    return int(math.prod(declared.shape) * part)


def _flops_per_token(target: Target, anatomy: Anatomy) -> int:
    """FLOPs per query and cached token on one device, over its heads: scores and mixing."""
    cache = cache_of(target.recipe, target.layout)
    shards = target.layout.shards(cache.axis)
    return 2 * (cache.key_dim + (cache.value_dim or cache.key_dim)) * anatomy.heads // shards


def _cache_bytes(
    target: Target, anatomy: Anatomy, bucket: Bucket, context: int, before: int
) -> int:
    """Bytes of the cache: read once by each decode and prompt block, new tokens written."""
    block = target.limits.prefill_block
    seen = bucket.decodes * anatomy.seen(context)
    seen += sum(anatomy.seen(before + (n + 1) * block) for n in range(bucket.blocks))
    new = (bucket.decodes + bucket.blocks * block) * len(anatomy.layers)
    return int((seen + new) * cached_token_bytes(target))
