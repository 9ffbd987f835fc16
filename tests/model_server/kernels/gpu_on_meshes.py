"""What the GPU's kernel computes on several fake devices, beside the reference on one.

    python -m tests.model_server.kernels.gpu_on_meshes RESULTS.npz

The number of devices comes from XLA_FLAGS.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from model_server.kernels import reference
from model_server.kernels.gpu_attention import GpuAttention
from model_server.kernels.pages import key_major_shapes, write
from model_server.kernels.row_split import RowSplit
from model_server.kernels.token_major import token_major_shapes, write_tokens
from model_server.models.axis_rules import AXES
from tests.model_server.kernels.paged_cases import Case, attend, batch_of, filled, new_tokens

HEADS = Case(4, 2, 4, 8, 4, 16, 16, 8, 5, window=9)
LATENT = Case(4, 2, 4, 8, 1, 24, 0, 8, 5)
RUNS = {
    "heads and pages": (HEADS, "model", "model", False),
    "heads alone": (LATENT, "model", None, False),
    "rows": (HEADS, None, None, True),
    "rows that do not divide": (replace(HEADS, decodes=3), None, None, True),
}


def main(path: str) -> None:
    np.savez(path, **dict(results()))


def results() -> Iterator[tuple[str, np.ndarray]]:
    mesh = Mesh(np.asarray(jax.devices()).reshape(1, 2, 2), AXES)
    for run, (case, heads, pages, rows) in RUNS.items():
        kernel = GpuAttention(mesh, heads, pages, interpret=True)
        split = RowSplit(mesh, "data", attention=True) if rows else None
        batch, new = replace(batch_of(case, kernel), split=split), new_tokens(case)
        layer = jax.device_put(
            filled(case, token_major_shapes, write_tokens),
            NamedSharding(mesh, PartitionSpec(None, pages)),
        )
        attended, written = jax.jit(attend, static_argnums=0)(case, batch, layer, *new)
        assert all(
            after.sharding.is_equivalent_to(before.sharding, before.ndim)
            for before, after in zip(*map(jax.tree.leaves, (layer, written)), strict=True)
        )
        yield run, np.asarray(attended)
        plain = replace(batch, kernel=reference.KERNEL, split=None)
        wanted, _ = attend(case, plain, filled(case, key_major_shapes, write), *new)
        yield f"{run}: reference", np.asarray(wanted)


if __name__ == "__main__":
    main(sys.argv[1])
