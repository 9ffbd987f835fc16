"""The GPU's attention against plain XLA, one layer's step, on the GPU of this machine if any."""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from model_server.kernels import xla
from model_server.kernels.gpu.attention import GpuAttention
from model_server.kernels.paged import Kernel, PagedBatch
from model_server.kernels.pages import allocate
from model_server.models.weights.sharding import AXES
from tests.model_server.kernels.paged_cases import Case, attend, batch_of, new_tokens
from tests.tools.bench.table import Table

ROUNDS = 5
STEPS = 20
PAGE = 64
# Heads, KV heads, key and value size, as of a large Llama and of DeepSeek's latents.
MODELS = {"GQA 32/8 of 128": (32, 8, 128, 128), "latent 128/1 of 576": (128, 1, 576, 0)}
# Decode rows, prompt blocks of 32, cached tokens that each sees.
STEPS_OF = [(1, 0, 32768), (8, 0, 8192), (64, 0, 2048), (256, 0, 1024), (1, 16, 4096)]


def run() -> list[Table]:
    if jax.default_backend() != "gpu":
        print("no GPU here: nothing to measure its attention on", file=sys.stderr)
        return []
    device = jax.devices()[0]
    own = GpuAttention(Mesh(np.asarray([device]).reshape(1, 1, 1), AXES), None, None)
    return [_table(f"{device.device_kind}, {name}", sizes, own) for name, sizes in MODELS.items()]


def _table(title: str, sizes: tuple[int, int, int, int], own: Kernel) -> Table:
    table = Table(
        f"Attention on a GPU: {title}",
        f"Microseconds of one layer's write and read, median of {ROUNDS} times {STEPS} steps; GB/s "
        "of the keys and values that the rows see.",
        ("rows", "blocks", "context", "pages", "XLA", "Triton", "times faster", "GB/s"),
    )
    for decodes, blocks, context in STEPS_OF:
        for dtype in ("bfloat16", "int8"):
            case = Case(decodes, blocks, 32, *sizes, PAGE, context // PAGE, dtype=dtype)
            plain_us, own_us = _us(case, xla.KERNEL), _us(case, own)
            speed = _bytes_seen(case) / own_us / 1e3
            figures = (f"{plain_us:.0f}", f"{own_us:.0f}", f"{plain_us / own_us:.1f}")
            table.add(decodes, blocks, context, dtype, *figures, f"{speed:.0f}")
    return table


def _us(case: Case, kernel: Kernel) -> float:
    batch, new = _full(case, kernel), new_tokens(case)
    dtype = jnp.dtype(case.dtype)
    layer = allocate(case.cache, case.pages, case.page, dtype, shapes=kernel.shapes)[0]
    step = jax.jit(attend, static_argnums=0, donate_argnums=2)
    attended, layer = step(case, batch, layer, *new)
    took = []
    for _ in range(ROUNDS):
        jax.block_until_ready(attended)
        began_s = time.perf_counter()
        for _ in range(STEPS):
            attended, layer = step(case, batch, layer, *new)
        jax.block_until_ready(attended)
        took.append((time.perf_counter() - began_s) / STEPS * 1e6)
    return statistics.median(took)


def _full(case: Case, kernel: Kernel) -> PagedBatch:
    """All rows and blocks at the end of their context."""
    batch, end = batch_of(case, kernel), case.columns * case.page
    queries = end - case.block + 1 + jnp.arange(case.block, dtype=jnp.int32)
    return replace(
        batch,
        decode_limits=jnp.full_like(batch.decode_limits, end),
        block_limits=jnp.broadcast_to(queries, batch.block_limits.shape),
    )


def _bytes_seen(case: Case) -> int:
    """Of each sequence once, though several programs may read the same."""
    batch = _full(case, xla.KERNEL)
    seen = int(batch.decode_limits.sum()) + int(batch.block_limits.max(1, initial=0).sum())
    page = sum(case.cache.bytes_by_layer(case.page, jnp.dtype(case.dtype)))
    return seen * page // case.page
