"""The formulas of cost against what the kernels do when they are interpreted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention
from jax.extend.core import jaxpr_as_fun
from jax.extend.core.primitives import dot_general_p
from jax.sharding import Mesh

from model_server.kernels.pages import allocate
from model_server.kernels.tpu.attention import TpuAttention
from model_server.models.weights.sharding import AXES
from tests.tools.bench.tpu_attention.cost import RaggedSizes, arrays_like, own_cost, ragged_cost
from tests.tools.bench.tpu_attention.steps import AttentionStep

CHUNK = AttentionStep(
    name="chunk", heads=4, kv_heads=2, head_dim=128, start=30, chunk=128, page=16, table=12
)
MIXED = AttentionStep(
    name="mixed",
    heads=4,
    kv_heads=2,
    head_dim=128,
    decodes=(1, 70, 40),
    start=30,
    chunk=128,
    page=16,
    table=12,
)
DECODES = AttentionStep(
    name="decodes", heads=4, kv_heads=2, head_dim=128, decodes=(5, 90, 33, 64), page=16, table=8
)


@dataclass(frozen=True, slots=True)
class NotedCopy:
    """A copy that tells when it starts."""

    copy: Any
    tell: Callable[[], None]

    def start(self) -> None:
        self.tell()
        self.copy.start()

    def wait(self) -> None:
        self.copy.wait()


def counted(patch: pytest.MonkeyPatch, function: Callable[..., Any], *inputs: Any) -> Counter[str]:
    """Run a function, its kernels interpreted: bytes copied to and from the chip, and FLOPs."""
    found: Counter[str] = Counter()
    copy, product = pltpu.make_async_copy, dot_general_p.bind

    def tell(kind: str, number: int) -> None:
        jax.debug.callback(lambda: found.update({kind: number}))

    def copying(source: Any, target: Any, *rest: Any) -> NotedCopy:
        size = math.prod(source.shape) * jnp.dtype(source.dtype).itemsize
        kind = "from the chip" if "vmem" in str(source.ref.aval).lower() else "to the chip"
        return NotedCopy(copy(source, target, *rest), partial(tell, kind, size))

    def multiplying(left: Any, right: Any, **params: Any) -> Any:
        made = product(left, right, **params)
        (axes, _), _ = params["dimension_numbers"]
        summed = math.prod(left.shape[axis] for axis in axes)
        tell("FLOPs", 2 * math.prod(made.shape) * summed)
        return made

    def storing(target: Any, numbers: jax.Array, *, mask: jax.Array) -> None:
        target[...] = jnp.where(mask, numbers, target[...])

    jax.clear_caches()
    with patch.context() as patched:
        patched.setattr(pltpu, "store", storing)  # jax 0.10 cannot interpret its own
        patched.setattr(pl, "pallas_call", partial(pl.pallas_call, interpret=True))
        patched.setattr(pltpu, "make_async_copy", copying)
        patched.setattr(dot_general_p, "bind", multiplying)
        traced = jax.make_jaxpr(function)(*inputs)
    jax.block_until_ready(jax.jit(jaxpr_as_fun(traced))(*jax.tree.leaves(inputs)))
    jax.effects_barrier()
    jax.clear_caches()
    return found


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(DECODES, id=DECODES.name),
        pytest.param(MIXED, id=MIXED.name, marks=pytest.mark.nightly),
    ],
)
def test_our_kernel_copies_and_multiplies_as_its_cost_says(
    step: AttentionStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = Mesh(np.asarray(jax.devices("cpu")[:1]).reshape(1, 1, 1), AXES)
    kernel = TpuAttention(mesh, None, None, interpret=True)
    bf16 = jnp.dtype("bfloat16")
    layer = allocate(step.cache, step.pages, step.page, bf16, shapes=kernel.shapes)[0]

    def attend(*inputs: Any) -> Any:
        return step.batch(kernel).attend(*inputs, scale=0.1)

    found = counted(monkeypatch, attend, layer, *arrays_like(step))
    cost = own_cost(step, kernel, layer)
    assert found["to the chip"] == cost.fetched + cost.modified
    assert found["from the chip"] == cost.modified
    assert found["FLOPs"] == cost.flops


# Interpreted, its note of which sequence comes next is lost between blocks of queries, so these
# steps have one block of queries, or one sequence.
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(DECODES, id=DECODES.name),
        pytest.param(CHUNK, id=CHUNK.name, marks=pytest.mark.nightly),
    ],
)
def test_the_kernel_of_jax_copies_and_multiplies_as_its_cost_says(
    step: AttentionStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = RaggedSizes(pages=3, queries=8, heads=step.heads, kv_heads=step.kv_heads)
    q = jnp.zeros((step.tokens, step.heads, step.head_dim), jnp.bfloat16)
    shape = (step.pages + 1, step.page, 2 * step.kv_heads, step.head_dim)
    inputs = (q, jnp.zeros(shape, jnp.bfloat16), *step.ragged())

    def attend(*inputs: Any) -> Any:
        return ragged_paged_attention(
            *inputs, num_kv_pages_per_block=sizes.pages, num_queries_per_block=sizes.queries
        )

    found = counted(monkeypatch, attend, *inputs)
    cost = ragged_cost(step, sizes)
    assert found["to the chip"] == cost.fetched
    assert found["FLOPs"] == cost.flops
