"""Placement of a weight's products: the platform, and the mesh axes that shard its dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from model_server.models.sharding import Layout


@dataclass(frozen=True, slots=True)
class Placement:
    """Static in a program: a step may be traced for devices this process does not have."""

    platform: str = "cpu"  # cpu, gpu or tpu
    outputs: str | None = None  # mesh axis that shards them
    inputs: str | None = None
    rows: str | None = None  # of a step, between layers
    interpret: bool = False  # run TPU kernels without a TPU, for tests

    @classmethod
    def of(
        cls, layout: Layout, shape: Sequence[int], axes: Sequence[str | None], bits: int
    ) -> Placement:
        """Placement of a weight [..., out, in] with these logical axes."""
        outputs, inputs = layout.spec(shape, axes, bits)[-2:]
        rows = layout.axis("tokens")
        return cls(layout.platform, outputs, inputs, None if rows in (outputs, inputs) else rows)
