"""Unavoidable work of one step on one device: FLOPs, and bytes of weights and cache.

Arithmetic on shapes, to complement the compiled program, whose text does not show the inside of
kernels and counts a loop of data-dependent length once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.engine.buckets import Bucket
from model_server.kernels.pages import CacheShape
from model_server.kernels.states import MemoryKernel
from model_server.loading.deployment import Deployment
from model_server.models.layers.attention import Attention
from model_server.models.layers.compressed_attention import CompressedAttention
from model_server.models.layers.latent_attention import LatentAttention
from model_server.models.layers.lending import LentAttention
from model_server.models.layers.routing import Router
from model_server.models.recipe import Recipe
from model_server.models.weights.weight import Declaration, WeightForm

_LAYER = re.compile(r"layers\.(\d+)\.")


# The keys and values that a layer attends to, its own or another layer's; or else its state.
Memory = Literal["own", "lent", "state", "none"]


@dataclass(frozen=True, slots=True)
class LayerType:
    """The properties in which layers of one model differ."""

    window: int | None = None  # tokens that a query attends to; None: all
    is_routed: bool = False  # its feed-forward block is a mixture of experts
    memory: Memory = "own"

    def seen(self, context: int) -> int:
        """Cached tokens that one query attends to."""
        if self.memory not in ("own", "lent"):
            return 0
        return context if self.window is None else min(context, self.window)


@dataclass(frozen=True, slots=True)
class Anatomy:
    """One model's structure, independent of its sharding."""

    heads: int  # query heads, of the layer that has most
    kv_heads: int
    layers: tuple[LayerType, ...]
    experts_per_token: int | None  # None: no experts
    kinds: tuple[Any, ...]  # of each layer; equal ones cost the same

    def seen(self, context: int) -> int:
        """Cached tokens that one query attends to, summed over the layers."""
        return sum(layer.seen(context) for layer in self.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """Work of one step on one device."""

    flops: int  # of all matrix products
    attention_flops: int  # of these: between queries and the cache
    weights: int  # bytes read
    cache: int  # bytes of keys and values, read and written
    states: int = 0  # bytes of states, read and written
    memories: int = 0  # of these: those that a kernel moves
    untouched: int = 0  # bytes of experts that no token of the batch chooses

    @property
    def bytes(self) -> int:
        return self.weights + self.cache + self.states

    @property
    def unseen(self) -> int:
        """Bytes that kernels move, which a program's text does not show."""
        return self.cache + self.memories

    def __add__(self, other: StepWork) -> StepWork:
        return StepWork(
            flops=self.flops + other.flops,
            attention_flops=self.attention_flops + other.attention_flops,
            weights=self.weights + other.weights,
            cache=self.cache + other.cache,
            states=self.states + other.states,
            memories=self.memories + other.memories,
            untouched=self.untouched + other.untouched,
        )


class Workload:
    """Counts the work of a deployment's steps."""

    def __init__(self, deployment: Deployment, *, has_logits: bool = True) -> None:
        """has_logits: False where steps only write keys and values, and no head is read."""
        self.deployment = deployment
        self._has_logits = has_logits
        self.anatomy = anatomy_of(deployment.recipe)

    def of(self, bucket: Bucket, context: int) -> StepWork:
        """Return the work of a full step of this bucket with `context` tokens cached per sequence.

        The prompt blocks of a step are the last ones of a prompt of that length.
        """
        block = self.deployment.limits.prefill_block
        tokens, rows = _tokens_and_rows(bucket, block)
        each = [self._of_weight(declared, tokens, rows) for declared in self._declarations]
        experts = [declared for declared in self._declarations if self._is_chosen(declared)]
        held = sum(one.bytes_on(self.deployment.layout) for one in experts)
        before = max(0, context - bucket.blocks * block)  # cached before the first prompt block
        prompts = [before + (n + 1) * block for n in range(bucket.blocks)]
        seen = self.anatomy.seen
        queries = bucket.decodes * seen(context) + block * sum(map(seen, prompts))
        attended = queries * self._flops_per_cached_token()
        return StepWork(
            flops=sum(flops for _, flops in each) + attended,
            attention_flops=attended,
            weights=sum(read for read, _ in each),
            cache=self._cache([context] * bucket.decodes + prompts, tokens),
            states=self._states(bucket),
            memories=self._memories(bucket),
            untouched=held - sum(self._of_weight(one, tokens, rows)[0] for one in experts),
        )

    def _cache(self, contexts: Sequence[int], tokens: int) -> int:
        """Bytes of keys and values: read once in each of these contexts, and new ones written."""
        size, lenders = self.deployment.limits.page_size, self.deployment.cache.lenders
        pages, total = self.deployment.layer_bytes(size), 0
        for index, layer in enumerate(self.anatomy.layers):
            if layer.memory in ("own", "lent"):
                lender = lenders[index] if lenders else None
                lent = 0 if lender is None else pages[lender]
                total += (pages[index] + lent) * sum(map(layer.seen, contexts))
                total += pages[index] * tokens
        return total // size

    def _states(self, bucket: Bucket) -> int:
        """Bytes of states: each sequence's is read and written once; all blocks are of one."""
        sequences = bucket.decodes + (1 if bucket.blocks else 0)
        each = self.deployment.layer_bytes(self.deployment.limits.page_size)
        kept = zip(self.anatomy.layers, each, strict=False)  # a head's hidden states are no layer
        return 2 * sequences * sum(state for layer, state in kept if layer.memory == "state")

    def _memories(self, bucket: Bucket) -> int:
        """Bytes of the memories of decode rows, if a kernel reads and writes them."""
        made = self.deployment
        if not isinstance(made.kernel, MemoryKernel):
            return 0
        pools = zip(self.anatomy.layers, made.pool_shapes, strict=True)
        held = [pool[-1] for layer, pool in pools if layer.memory == "state"]
        shapes = [each.sharding.shard_shape(each.shape) for each in held if len(each.shape) == 4]
        return 2 * bucket.decodes * sum(4 * math.prod(shape[1:]) for shape in shapes)

    def flops_ratio(self, bucket: Bucket, layers: int) -> float:
        """Return a step's FLOPs of all weights divided by those of the first `layers` layers."""
        tokens, rows = _tokens_and_rows(bucket, self.deployment.limits.prefill_block)
        all_of_it = compiled = 0
        for declared in self._declarations:
            flops = self._of_weight(declared, tokens, rows)[1]
            all_of_it += flops
            compiled += flops if (layer_at(declared.path) or 0) < layers else 0
        return all_of_it / max(1, compiled)

    @property
    def _declarations(self) -> Sequence[Declaration]:
        return self.deployment.blueprint.declarations

    def _of_weight(self, declared: Declaration, tokens: int, rows: int) -> tuple[int, int]:
        """Bytes read and FLOPs of one weight."""
        held, first = declared.bytes_on(self.deployment.layout), next(iter(declared.shape), 1)
        multiplied = 2 * self._share(declared) if len(declared.shape) > 1 else 0
        if self._is_looked_up(declared):
            return held * min(tokens, first) // first, 0
        if "vocab" in declared.axes and not self._has_logits:
            return 0, 0
        if "vocab" in declared.axes:
            return held, multiplied * rows
        if self._is_chosen(declared):
            chosen = self.anatomy.experts_per_token or first
            touched = expected_experts(first, chosen, tokens) / first
            return int(held * touched), multiplied * tokens * chosen // first
        return held, multiplied * tokens

    def _is_chosen(self, declared: Declaration) -> bool:
        """True for matrices of experts, of which a step reads those that its tokens choose."""
        return "experts" in declared.axes and bool(self.anatomy.experts_per_token)

    def _is_looked_up(self, declared: Declaration) -> bool:
        """True for tables from which a step reads single rows; a tied embedding is the head too."""
        if declared.path.startswith(("positions", "inputs.table")):
            return True
        has_head = any(other.path.startswith("head.") for other in self._declarations)
        has_head = has_head or not self._has_logits
        return declared.path.startswith("embedding") and has_head

    def _share(self, declared: Declaration) -> int:
        """Number of elements of a weight that one device multiplies with."""
        first = declared.leaves[0]
        sharding = self.deployment.layout.sharding(first.shape, first.axes, first.bits)
        part = math.prod(sharding.shard_shape(first.shape)) / math.prod(first.shape)
        return int(math.prod(declared.shape) * part)

    def _flops_per_cached_token(self) -> int:
        """FLOPs per query and cached token, over a device's heads: scores and mixing."""
        cache = self.deployment.cache
        shards = self.deployment.layout.shards(cache.axis)
        return (
            2 * (cache.key_dim + (cache.value_dim or cache.key_dim)) * self.anatomy.heads // shards
        )


def anatomy_of(recipe: Recipe) -> Anatomy:
    """Read the structure off the recipe's modules, built abstractly (no memory)."""
    form = WeightForm(dtype=jnp.dtype(recipe.dtype))
    module: Any = nnx.eval_shape(lambda: recipe.build(form))
    parts = [_parts(layer) for layer in module.layers]
    shapes = [part.shape for part in chain(*parts) if not isinstance(part, Router)]
    routers = [part for part in chain(*parts) if isinstance(part, Router)]
    cache = recipe.cache(1)
    layers = tuple(_layer(of, _memory(cache, index)) for index, of in enumerate(parts))
    return Anatomy(
        heads=max((shape.heads for shape in shapes), default=0),
        kv_heads=max((getattr(shape, "kv_heads", 1) for shape in shapes), default=0),
        layers=layers,
        experts_per_token=_chosen(routers[0].choice) if routers else None,
        kinds=tuple(zip(layers, _cached(cache), _weights(module), strict=True)),
    )


def _memory(cache: CacheShape, index: int) -> Memory:
    state = cache.state_of(index)
    if state is None:
        return "own"
    if cache.lenders and cache.lenders[index] is not None:
        return "lent"
    return "state" if state else "none"


def _cached(cache: CacheShape) -> list[Any]:
    """Shapes of what each layer keeps."""
    others = cache.others or (None,) * (cache.layers - bool(cache.kept))
    return [(cache.state_of(index), other) for index, other in enumerate(others)]


def _weights(module: Any) -> list[Any]:
    """Names and shapes of each layer's weights."""
    return [
        tuple((path, leaf.shape) for path, leaf in jax.tree.leaves_with_path(nnx.state(layer)))
        for layer in module.layers
    ]


def layer_at(path: str) -> int | None:
    """Return the layer of a weight by its path; None if it belongs to none."""
    found = _LAYER.match(path)
    return int(found[1]) if found else None


def expected_experts(experts: int, chosen: int, tokens: int) -> float:
    """Return the expected number of distinct experts, if all are equally likely."""
    return experts * (1 - (1 - min(1.0, chosen / experts)) ** tokens)


def _tokens_and_rows(bucket: Bucket, block: int) -> tuple[int, int]:
    """Tokens of a step, and how many of them need logits."""
    return bucket.tokens(block), bucket.decodes + (1 if bucket.blocks else 0)


def _chosen(choice: Any) -> int:
    """Experts per token; every kind of routing has a count."""
    return choice.count


def _parts(layer: Any) -> list[Any]:
    """Find the attention and router modules anywhere in a layer."""
    wanted = (Attention, CompressedAttention, LatentAttention, LentAttention, Router)
    return [node for _, node in nnx.iter_graph(layer) if isinstance(node, wanted)]


def _layer(parts: list[Any], memory: Memory) -> LayerType:
    attend = (Attention, CompressedAttention, LatentAttention, LentAttention)
    windows = [part.shape.window for part in parts if isinstance(part, attend)]
    routed = any(isinstance(part, Router) for part in parts)
    return LayerType(windows[0] if windows else None, routed, memory)
