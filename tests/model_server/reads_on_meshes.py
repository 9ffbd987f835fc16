"""What a process reads of a checkpoint to place weights on its devices; a process of its own.

    python -m tests.model_server.reads_on_meshes 1x2x2 [PROCESS OF COORDINATOR]

Prints JSON: every read as [tensor, [[start, stop] per dimension]]. The number of devices comes from
XLA_FLAGS; with several processes the mesh goes over the devices of all of them.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import numpy as np
from flax import nnx

from model_server.checkpoints.packed import Packing
from model_server.checkpoints.region import Region, deliver, explicit
from model_server.loading.weights import read_weights
from model_server.models.weights.quantization import Scheme
from model_server.models.weights.sharding import layout_of
from model_server.models.weights.source import Joined, Tensor
from model_server.models.weights.weight import blueprint, weight

SHAPES = {"rows": (8, 64), "columns": (64, 8), "both": (16, 32), "norm": (64,), "packed": (8, 64)}
SHAPES |= {"upper": (4, 8), "lower": (12, 8)}
_NUMBERS = {
    name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    for name, shape in SHAPES.items()
}


class Counted:
    """A checkpoint in memory that remembers what was read of it."""

    format = "safetensors"

    def __init__(self) -> None:
        self.reads: list[tuple[str, list[tuple[int, int]]]] = []

    def names(self) -> list[str]:
        return list(_NUMBERS)

    def shape(self, name: str) -> tuple[int, ...]:
        return SHAPES[name]

    def nbytes(self, name: str) -> int:
        return _NUMBERS[name].nbytes

    def packing(self, name: str) -> Packing | None:
        return None

    def read(
        self, name: str, region: Region | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        found = explicit(region or (), SHAPES[name])
        self.reads.append((name, [(part.start, part.stop) for part in found]))
        return deliver(_NUMBERS[name][found], out)


class _Weights(nnx.Module):
    def __init__(self) -> None:
        def declared(axes: tuple[str | None, ...], *names: str, **how: Any) -> nnx.Param:
            source = Joined(tuple(map(Tensor, names))) if len(names) > 1 else Tensor(names[0])
            shape = (sum(SHAPES[name][0] for name in names), *SHAPES[names[0]][1:])
            return weight(shape, axes, source, dtype=np.float32, **how)

        self.rows = declared(("heads", None), "rows")
        self.columns = declared((None, "heads"), "columns")
        self.both = declared(("heads", "embed"), "both")
        self.norm = declared((None,), "norm")
        self.joined = declared(("ffw", None), "upper", "lower")
        self.packed = declared((None, "ffw"), "packed", quantization=Scheme("int8", None))


def main(mesh: str, *group: str) -> None:
    if group:
        process, processes, coordinator = group
        jax.distributed.initialize(coordinator, int(processes), int(process))
    sizes = [int(size) for size in mesh.split("x")]
    checkpoint: Any = Counted()
    module = blueprint(_Weights)
    leaves = read_weights(
        module.declarations, checkpoint, lambda progress: None, layout_of(sizes).placed()
    )
    _check(module.assemble(leaves))
    json.dump(checkpoint.reads, sys.stdout)


def _check(weights: Any) -> None:
    """Every device of this process holds what it should."""
    wanted = {name: _NUMBERS[name] for name in ("rows", "columns", "both", "norm")}
    wanted["joined"] = np.concatenate([_NUMBERS["upper"], _NUMBERS["lower"]])
    for name, numbers in wanted.items():
        for shard in getattr(weights, name).get_value().addressable_shards:
            np.testing.assert_array_equal(shard.data, numbers[shard.index])


if __name__ == "__main__":
    main(*sys.argv[1:])
