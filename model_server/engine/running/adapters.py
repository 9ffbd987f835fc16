"""Room for LoRA adapters among a model's weights: each is read in any thread, then written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import jax
import numpy as np

from model_server.engine.running.ops import (
    DONE,
    ForgetAdapter,
    Later,
    Op,
    Pending,
    ReadAdapter,
    WriteAdapter,
)
from model_server.engine.running.runner import ModelRunner
from model_server.engine.running.runner_part import Prepare, RunnerPart
from model_server.engine.step_program import ADAPTER


class AdapterFiles(Protocol):
    """Adapters that were read from their files and not written yet. Thread-safe."""

    def read(self, key: str, path: str, folder: str) -> None: ...

    def forget(self, key: str) -> None: ...

    def take(self, key: str) -> Sequence[jax.Array]: ...


class Adapters(RunnerPart[ModelRunner]):
    """Its program is among those of the steps."""

    warmups = 1

    def __init__(self, files: AdapterFiles) -> None:
        self._files = files

    def join(self, runner: ModelRunner) -> Mapping[type[Op], Prepare]:
        self._runner = runner
        return {
            ReadAdapter: lambda op: (
                lambda: Later(partial(self._files.read, op.key, op.path, op.folder))
            ),
            WriteAdapter: lambda op: partial(self._write, op),
            ForgetAdapter: lambda op: partial(self._forget, op),
        }

    def warm(self, index: int) -> None:
        """Write zeros into the first place."""
        self._put([_copied_zeros(shape) for shape in self._runner.program.adapter_shapes], 1)

    def _write(self, op: WriteAdapter) -> Pending[None]:
        self._put(self._files.take(op.key), op.place)
        return DONE

    def _forget(self, op: ForgetAdapter) -> Pending[None]:
        self._files.forget(op.key)
        return DONE

    def _put(self, given: Sequence[jax.Array], place: int) -> None:
        """Replace the factors in a place, in the order of `StepProgram.factors`; donates them."""
        call, factors = self._runner.compiled[ADAPTER], self._runner.program.factors
        self._runner.replace(factors, lambda held: call(held, tuple(given), np.int32(place - 1)))


def _copied_zeros(shape: jax.ShapeDtypeStruct) -> jax.Array:
    """Zeros from the host, as factors come: a stage's thread may compile nothing."""
    sharding: Any = shape.sharding
    part = np.zeros(sharding.shard_shape(shape.shape), shape.dtype)
    return jax.make_array_from_callback(shape.shape, sharding, lambda _: part)
