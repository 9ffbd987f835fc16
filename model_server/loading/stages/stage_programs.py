"""One pipeline stage's weights, pages and compiled buckets, on the devices of its own mesh.

The counterpart of `ModelRunner` for some of the layers: a step takes and returns hidden states
where there is a neighbour, tokens at the ends. No collective leaves the mesh.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.engine.buckets import Bucket
from model_server.engine.compiling import COMPILED_HERE, Programs, compiled_in_turn, options_for
from model_server.engine.runner import free
from model_server.engine.step_arrays import ColumnLayout
from model_server.engine.step_program import (
    Outputs,
    chosen,
    everywhere,
    paged_batch,
    shape_of,
    told_as_plan_error,
    unpack,
)
from model_server.engine.types import EngineLimits
from model_server.kernels.paged import Kernel
from model_server.kernels.pages import LayerPages
from model_server.kernels.sequence_sharding import SequenceSharding
from model_server.models.weights.quantized import as_bytes
from model_server.models.weights.stage import Stage
from model_server.models.weights.weight import Blueprint
from sax.types import Progress


class StagePrograms:
    """Compiled ahead of time: calling a compiled bucket never compiles again."""

    def __init__(
        self,
        stage: Stage,
        blueprint: Blueprint,
        leaves: Sequence[jax.Array],
        pages: Sequence[LayerPages],
        limits: EngineLimits,
        buckets: Sequence[Bucket],
        kernel: Kernel,
        embed: int,
        split: SequenceSharding | None = None,
    ) -> None:
        self.stage = stage
        self.limits = limits
        self.embed = embed  # D
        self.layouts = {bucket: ColumnLayout(bucket, limits) for bucket in buckets}
        self._blueprint = blueprint
        self._kernel = kernel
        self._split = split
        self._leaves = tuple(map(as_bytes, leaves))
        self._pages = tuple(pages)
        self._everywhere = everywhere(self._leaves[0].sharding)
        self._compiled: dict[Bucket, Any] = {}
        self._pages_are_whole = threading.Lock()  # held while a call donates and replaces them

    @property
    def weight_bytes(self) -> int:
        return sum(leaf.nbytes for leaf in self._leaves)

    def compile(
        self, report: Callable[[Progress], None], programs: Programs = COMPILED_HERE
    ) -> None:
        """Compile every bucket without running any."""

        def program_of(bucket: Bucket) -> Any:
            return self._compile_one(bucket, programs)

        total = len(self.layouts)
        report(Progress("compiling bucket", 0, total))
        with closing(compiled_in_turn(tuple(self.layouts), program_of)) as made:
            for done, (bucket, program) in enumerate(made, 1):
                self._compiled[bucket] = program
                report(Progress("compiling bucket", done, total))

    def run(self, bucket: Bucket, vector: np.ndarray, hidden: np.ndarray | None) -> Any:
        """Run one device call; returns hidden states f32[T, D], or `Outputs` on the last stage.

        hidden: from the previous stage; None on the first. Replaces the pages.
        """
        given = () if hidden is None else (hidden,)
        with self._pages_are_whole:
            made, self._pages = self._compiled[bucket](self._leaves, self._pages, vector, *given)
        return made

    def close(self) -> None:
        """Free device memory; a concurrent `run` gets an error."""
        with self._pages_are_whole:
            self._compiled.clear()
            arrays = jax.tree.leaves((self._leaves, self._pages))
            self._leaves, self._pages = (), ()
            free(arrays)

    def _compile_one(self, bucket: Bucket, programs: Programs) -> Any:
        layout = self.layouts[bucket]
        held = jax.tree.map(shape_of, (self._leaves, self._pages))
        given = [self._input((layout.size,), jnp.int32)]
        if not self.stage.is_first:
            given.append(self._input((layout.tokens, self.embed), jnp.float32))
        jitted = jax.jit(
            self._trace(layout),
            donate_argnums=1,
            # Replicated outputs, as every host passes on its own copy; pages keep their sharding.
            out_shardings=(self._everywhere, jax.tree.map(lambda page: page.sharding, held[1])),
            compiler_options=options_for(self._everywhere),
        )

        def lower() -> jax.stages.Lowered:
            with told_as_plan_error(str(bucket)):
                return jitted.lower(*held, *given)

        return programs.compiled(str(bucket), lower)

    def _input(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self._everywhere)

    def _trace(self, layout: ColumnLayout) -> Callable[..., Any]:
        def step(leaves: Any, pages: Any, vector: jax.Array, *given: jax.Array) -> Any:
            model = self._blueprint.assemble(leaves)
            parts = unpack(layout, vector)
            return run_stage(model, self.stage, pages, parts, self._kernel, self._split, *given)

        return step


def run_stage(
    model: Any,
    stage: Stage,
    pages: Sequence[LayerPages],
    step: dict[str, jax.Array],
    kernel: Kernel,
    split: SequenceSharding | None,
    hidden: jax.Array | None = None,  # f32[T, D]; None on the first stage
) -> tuple[jax.Array | Outputs, tuple[LayerPages, ...]]:
    """Trace one stage of one step. On the first stage every token comes from the step itself."""
    positions = step["positions"]
    x = model.embed(step["tokens"], positions) if hidden is None else hidden
    x, written = model.run(x, positions, pages, paged_batch(step, kernel, split))
    if not stage.is_last:
        return x, written
    return chosen(model, model.final_norm(x), step), written
