"""Compiling for TPU chips with the real compiler, on a machine that has none."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from model_server.models.weights.sharding import AXES
from model_server.plan.topology import topology_of

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="libtpu is not installed (`make test` does so on Linux x86-64): no TPU compiler here",
)

ONE_CHIP = {"v5e": "v5e:1x1", "v5p": "v5p:1x1x1", "v6e": "v6e:1x1", "v7x": "tpu7x:1x1x1"}
CHIPS = tuple(ONE_CHIP)


def mesh_of(topology: str, shape: tuple[int, int, int] | None = None) -> Mesh:
    """The devices of a slice; all of them on the model axis unless told otherwise."""
    devices = np.asarray(topology_of(topology).devices)
    return Mesh(devices.reshape(shape or (1, 1, devices.size)), AXES)


def one_device(chip: str) -> Mesh:
    """A mesh of one device of such a chip (v7x has two to a chip)."""
    return Mesh(np.asarray(topology_of(ONE_CHIP[chip]).devices[:1]).reshape(1, 1, 1), AXES)


def compiled(function: Callable[..., Any], *shapes: Any, **options: Any) -> Any:
    """The program for the devices that the shapes are sharded over; options are those of jit."""
    return jax.jit(function, **options).lower(*shapes).compile()
