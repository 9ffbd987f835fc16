"""The kernel of a platform, as a pure choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh

from model_server.kernels import xla
from model_server.kernels.choice import kernel_for
from model_server.kernels.gpu.attention import GpuAttention
from model_server.kernels.tpu.attention import TpuAttention
from model_server.models.weights.sharding import AXES

MESH = AbstractMesh((1, 1, 4), AXES)
BF16, FLOAT8 = jnp.dtype("bfloat16"), jnp.dtype("float8_e4m3fn")


@dataclass(frozen=True)
class Device:
    compute_capability: str


@dataclass(frozen=True)
class Devices:
    """What is asked of a mesh: its first device, and how many there are."""

    devices: Any
    size: int = 1


def of(capability: str) -> Any:
    return Devices(np.asarray([Device(capability)]))


def test_a_tpu_has_a_kernel_that_knows_how_heads_are_divided() -> None:
    assert kernel_for("tpu", MESH, "model", None, BF16) == TpuAttention(MESH, "model", None)


def test_a_cpu_has_plain_xla() -> None:
    assert kernel_for("cpu", MESH, "model", "model", BF16) is xla.KERNEL


def test_a_gpu_has_triton_where_that_knows_it() -> None:
    for capability, dtype, triton in [
        ("9.0", BF16, True),
        ("9.0", FLOAT8, True),
        ("8.0", BF16, True),
        ("8.0", FLOAT8, False),
        ("7.5", BF16, False),
        ("gfx942", BF16, False),
    ]:
        kernel = kernel_for("gpu", of(capability), "model", "model", dtype)
        assert isinstance(kernel, GpuAttention) == triton, (capability, dtype)
        assert triton or kernel is xla.KERNEL, (capability, dtype)
