"""The encoders beside a model: their vectors go into a buffer that steps with prompts read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import jax

from model_server.engine.buckets import Bucket
from model_server.engine.encoder_program import EncoderProgram, encode_name
from model_server.engine.media import BatchShape, EncoderInput, empty_input, pack_batch
from model_server.engine.running.compiled_steps import zeros
from model_server.engine.running.ops import DONE, Encode, Op, Pending
from model_server.engine.running.runner import ModelRunner
from model_server.engine.running.runner_part import Prepare, RunnerPart
from model_server.models.weights.quantized import as_bytes
from model_server.sharing.freeing import free


class Encoder(RunnerPart[ModelRunner]):
    """Its programs are among those of the steps."""

    def __init__(self, program: EncoderProgram, leaves: Sequence[jax.Array]) -> None:
        self._program = program
        self._leaves = tuple(map(as_bytes, leaves))
        self._vectors = zeros(program.buffer)  # f32[M, W], which every batch replaces
        self.warmups = len(program.limits.batches)

    @property
    def weight_bytes(self) -> int:
        return sum(leaf.nbytes for leaf in self._leaves)

    def join(self, runner: ModelRunner) -> Mapping[type[Op], Prepare]:
        self._runner = runner
        return {Encode: lambda op: partial(self._do, op)}

    def warm(self, index: int) -> None:
        """Encode nothing once, and keep its vectors nowhere."""
        limits = self._program.limits
        shape = limits.batches[index]
        self._encode(shape, empty_input(limits, shape))
        jax.block_until_ready(self._vectors)

    def inputs(self, bucket: Bucket) -> Sequence[jax.Array]:
        return (self._vectors,) if self._runner.program.reads_media(bucket) else ()

    def sibling(self) -> Encoder:
        return Encoder(self._program, self._leaves)

    def close(self, *, shared: bool) -> None:
        with self._runner.held:
            free([self._vectors, *(() if shared else self._leaves)])
            self._leaves = ()

    def _do(self, op: Encode) -> Pending[None]:
        limits = self._program.limits
        self._encode(op.batch.shape(limits), pack_batch(op.batch, limits))
        return DONE

    def _encode(self, shape: BatchShape, given: EncoderInput) -> None:
        with self._runner.held:
            call = self._runner.compiled[encode_name(self._program.limits, shape)]
            self._vectors = call(self._leaves, self._vectors, *given)
