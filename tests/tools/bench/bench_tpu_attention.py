"""Our TPU attention beside JAX's ragged paged attention, by the TPU compiler's figures."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from model_server.kernels.tpu.attention import TpuAttention
from model_server.models.weights.sharding import AXES
from model_server.plan.hlo.module import parse
from model_server.plan.hlo.traffic import bytes_moved
from model_server.plan.topology import topology_of
from tests.model_server.kernels.tpu.pallas_calls import kernel_call
from tests.tools.bench.table import Table
from tests.tools.bench.tpu_attention.calls import MIB, declared_vmem, scoped_vmem
from tests.tools.bench.tpu_attention.cost import (
    AttentionCost,
    RaggedSizes,
    arrays_like,
    own_cost,
    ragged_cost,
    ragged_sizes,
    window_bytes,
)
from tests.tools.bench.tpu_attention.steps import AttentionStep, shapes_of, spread

CHIP = "v5e:1x1"
# JAX's kernel takes the compiler's 16 MiB unless its caller gives it a limit: of a chip's 128.
RAGGED_LIMIT = 100 * MIB
_REFUSAL = re.compile(r"Not [Ii]mplemented: (.+)")
STEPS = (
    AttentionStep(
        name="8 decodes of 2048, 32/8 heads of 128",
        heads=32, kv_heads=8, head_dim=128, decodes=spread(8, 2048), table=64,
    ),
    AttentionStep(
        name="64 decodes of 2048, 32/8 heads of 128",
        heads=32, kv_heads=8, head_dim=128, decodes=spread(64, 2048), table=64,
    ),
    AttentionStep(
        name="256 decodes of 1024, 8/1 heads of 128",
        heads=8, kv_heads=1, head_dim=128, decodes=spread(256, 1024), table=64,
    ),
    AttentionStep(
        name="16 decodes of 32768, 8/1 heads of 128",
        heads=8, kv_heads=1, head_dim=128, decodes=spread(16, 32768), table=512,
    ),
    AttentionStep(
        name="32 decodes of 2048, 16/16 heads of 128",
        heads=16, kv_heads=16, head_dim=128, decodes=spread(32, 2048), table=64,
    ),
    AttentionStep(
        name="64 decodes of 2048, 16/1 heads of 128",
        heads=16, kv_heads=1, head_dim=128, decodes=spread(64, 2048), table=64,
    ),
    AttentionStep(
        name="32 decodes of 2048, 8/4 heads of 256",
        heads=8, kv_heads=4, head_dim=256, decodes=spread(32, 2048), table=64,
    ),
    AttentionStep(
        name="64 decodes of 2048, 32/8 heads of 64",
        heads=32, kv_heads=8, head_dim=64, decodes=spread(64, 2048), table=64,
    ),
    AttentionStep(
        name="512 prompt tokens after 3584, 32/8 heads of 128",
        heads=32, kv_heads=8, head_dim=128, start=3584, chunk=512, table=64,
    ),
    AttentionStep(
        name="32 decodes of 2048 and 256 prompt tokens after 7936, 8/1 heads of 128",
        heads=8, kv_heads=1, head_dim=128, decodes=spread(32, 2048), start=7936, chunk=256,
        table=128,
    ),
)  # fmt: skip


class KernelFigures(NamedTuple):
    """Figures of one kernel in one step."""

    code: int  # bytes of the program
    temporaries: int
    scoped: int  # bytes of VMEM
    declared: int
    around: int  # bytes that XLA reads and writes before and after the kernel
    windows: int  # bytes that the grid brings to the chip and back
    cost: AttentionCost


@dataclass(frozen=True, slots=True)
class Contender:
    """A kernel as it would be called in a step: function, its arguments' shapes, its cost."""

    function: Callable[..., Any]
    shapes: tuple[Any, ...]
    cost: AttentionCost
    donated: int  # index of the argument that holds the pages

    def figures(self, sharding: NamedSharding) -> KernelFigures:
        call = kernel_call(self.function, *self.shapes)
        with tempfile.TemporaryDirectory(prefix="bench-tpu-") as folder:
            jitted = jax.jit(self.function, donate_argnums=self.donated)
            options = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
            memory: Any = jitted.lower(*self.shapes).compile(options).memory_analysis()
            (text,) = Path(folder).glob("*jit_*.after_optimizations.txt")
            moved = bytes_moved(parse(text.read_text()))
        return KernelFigures(
            memory.generated_code_size_in_bytes,
            memory.temp_size_in_bytes,
            scoped_vmem(call, sharding),
            declared_vmem(call),
            moved.read + moved.written,
            window_bytes(call),
            self.cost,
        )


def own(step: AttentionStep, mesh: Mesh) -> Contender:
    """Our kernel, which writes the step's keys and values too."""
    kernel = TpuAttention(mesh, None, None)
    everywhere = NamedSharding(mesh, PartitionSpec())
    layer = kernel.shapes(step.cache, step.pages, step.page, jnp.dtype("bfloat16"))

    def attend(layer: Any, batch: Any, q: Any, k: Any, v: Any) -> Any:
        return batch.attend(layer, q, k, v, scale=step.head_dim**-0.5)

    held = (layer, step.batch(kernel), *arrays_like(step))
    return Contender(attend, shapes_of(held, everywhere), own_cost(step, kernel, layer), 0)


def ragged(step: AttentionStep, mesh: Mesh, sizes: RaggedSizes) -> Contender:
    """JAX's kernel, after XLA has written the step's keys and values."""
    everywhere = PartitionSpec()

    def attend(pages: Any, page: Any, offset: Any, q: Any, new: Any, *lengths: Any) -> Any:
        pages = pages.at[page, offset].set(new)
        attended = ragged_paged_attention(
            q,
            pages,
            *lengths,
            sm_scale=step.head_dim**-0.5,
            num_kv_pages_per_block=sizes.pages,
            num_queries_per_block=sizes.queries,
            vmem_limit_bytes=RAGGED_LIMIT,
        )
        return attended, pages

    def local(*inputs: Any) -> Any:
        specs = {"in_specs": everywhere, "out_specs": everywhere}
        return jax.shard_map(attend, mesh=mesh, **specs, check_vma=False)(*inputs)

    both, dim = 2 * step.kv_heads, step.head_dim
    held = (
        jax.ShapeDtypeStruct((step.pages + 1, step.page, both, dim), jnp.bfloat16),
        *(jax.ShapeDtypeStruct((step.tokens,), jnp.int32) for _ in range(2)),
        jax.ShapeDtypeStruct((step.tokens, step.heads, dim), jnp.bfloat16),
        jax.ShapeDtypeStruct((step.tokens, both, dim), jnp.bfloat16),
        *step.ragged(),
    )
    shapes = shapes_of(held, NamedSharding(mesh, everywhere))
    return Contender(local, shapes, ragged_cost(step, sizes), 0)


def run() -> Table:
    mesh = Mesh(np.asarray(topology_of(CHIP).devices[:1]).reshape(1, 1, 1), AXES)
    table = Table(
        "Attention on a TPU: ours beside JAX's",
        f"One layer's step on one device of {CHIP}, bfloat16 pages of 64 tokens, compiled by "
        "libtpu. No TPU was there, so these are no times. Decodes have from half the tokens that "
        "are said to all of them; page tables hold 4,096 tokens or the longest context. JAX's is "
        "`jax.experimental.pallas.ops.tpu.ragged_paged_attention` with the block sizes that it "
        f"chooses by default, allowed {RAGGED_LIMIT // MIB} MiB of VMEM, as it does not compile in "
        "the usual 16; XLA writes the step's keys and values before it, which it leaves to its "
        "caller. Ours writes them itself; it takes queries, keys and values in float32, as layers "
        "make them, and gives float32. Code and temporaries are the whole program's. VMEM: the "
        "least limit that the compiler accepts, found from its refusals, beside what the call "
        "declares. Pages and FLOPs follow from each kernel's own grid and copies (a test counts "
        "them in interpreted steps); in brackets: times the keys and values of each sequence, and "
        "times the FLOPs of what its queries see. Other arrays: blocks of queries, new tokens and "
        "results. Around it: what XLA's part of the program reads from HBM and writes to it.",
        (
            "step",
            "kernel",
            "code KiB",
            "temporaries KiB",
            "VMEM MiB",
            "declared MiB",
            "pages read MiB",
            "pages modified MiB",
            "other arrays MiB",
            "around it MiB",
            "GFLOPs",
        ),
    )
    for step in STEPS:
        table.add(step.name, "ours", *_cells(step, own(step, mesh), mesh))
        table.add("", "JAX's", *_ragged_cells(step, mesh))
    return table


def _ragged_cells(step: AttentionStep, mesh: Mesh) -> tuple[str, ...]:
    device = " ".join(mesh.devices.flat[0].device_kind.split()[:2])
    try:
        return _cells(step, ragged(step, mesh, ragged_sizes(step, device)), mesh)
    except Exception as exc:  # the kinds of refusal share no class
        said = _REFUSAL.search(str(exc))
        reason = said[1] if said else f"{type(exc).__name__} {exc}".strip()
        return (f"does not compile: {reason}", *[""] * 8)


def _cells(step: AttentionStep, contender: Contender, mesh: Mesh) -> tuple[str, ...]:
    made = contender.figures(NamedSharding(mesh, PartitionSpec()))
    fetched, _, flops = made.cost
    return (
        f"{made.code / 1024:.0f}",
        f"{made.temporaries / 1024:.0f}",
        f"{made.scoped / MIB:.1f}",
        f"{made.declared / MIB:.1f}",
        f"{fetched / MIB:.1f} ({fetched / step.least_bytes:.2f})",
        f"{made.cost.modified / MIB:.1f}",
        f"{made.windows / MIB:.1f}",
        f"{made.around / MIB:.2f}",
        f"{flops / 1e9:.2f} ({flops / step.least_flops:.1f})",
    )
