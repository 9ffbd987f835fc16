"""What the GPU's kernel computes on several fake devices, beside the reference on one.

    python -m tests.model_server.kernels.gpu_on_meshes RESULTS.npz RUN...

The number of devices comes from XLA_FLAGS.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from model_server.kernels.gpu.attention import GpuAttention, token_major_shapes, write_tokens
from model_server.kernels.sequence_sharding import SequenceSharding
from model_server.models.weights.sharding import AXES
from tests.model_server.kernels.paged_cases import (
    Case,
    attend_compiled,
    batch_of,
    filled,
    new_tokens,
    reference_of,
)

HEADS = Case(4, 0, 1, 8, 4, 16, 16, 8, 5, window=9, sinks=True)
LATENT = Case(4, 0, 1, 8, 1, 24, 0, 8, 5)
RUNS = {
    "heads and pages": (HEADS, "model", "model", False),
    "heads alone": (LATENT, "model", None, False),
    "rows": (LATENT, None, None, True),
    "rows, which divide or not": (replace(LATENT, blocks=1, block=4), "model", None, True),
}


def main(path: str, *runs: str) -> None:
    np.savez(path, **dict(results(runs)))


def results(runs: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
    mesh = Mesh(np.asarray(jax.devices()).reshape(1, 2, 2), AXES)
    for run in runs:
        case, heads, pages, rows = RUNS[run]
        kernel = GpuAttention(mesh, heads, pages, interpret=True)
        split = SequenceSharding(mesh, "data", attention=True) if rows else None
        batch, new = replace(batch_of(case, kernel), split=split), new_tokens(case)
        layer = jax.device_put(
            filled(case, token_major_shapes, write_tokens),
            NamedSharding(mesh, PartitionSpec(None, pages)),
        )
        attended, written = attend_compiled(case, batch, layer, *new)
        assert all(
            after.sharding.is_equivalent_to(before.sharding, before.ndim)
            for before, after in zip(*map(jax.tree.leaves, (layer, written)), strict=True)
        )
        yield run, np.asarray(attended)
        yield f"{run}: part", np.asarray(attended.sharding.shard_shape(attended.shape))
        yield f"{run}: reference", np.asarray(reference_of(case, batch)[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
