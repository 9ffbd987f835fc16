"""A stage that is arithmetic: what PipelineRunner asks of a ModelRunner, without a device.

The first stage makes (token, position) of every token, every other one adds 1 to the token, and the
last one chooses for each logit row  token + position  mod 97. So after token t at position p a
pipeline of n stages gives  t + n - 1 + p  mod 97, and a lost or doubled stage changes the answer.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from model_server.engine.buckets import Bucket, choose
from model_server.engine.column_layout import ColumnLayout
from model_server.engine.running.ops import Op
from model_server.engine.sampling import TOP_LOGPROBS
from model_server.engine.step_arrays import StepArrays
from model_server.engine.step_functions import Outputs
from model_server.engine.types import Step
from model_server.models.weights.stage import Stage, stages_of
from tests.model_server.multihost.played import BUCKETS, LIMITS

VOCAB = 97


class FakeRunner:
    """`gate` holds every run back until it is set."""

    limits = LIMITS
    embed = 2
    weight_bytes = 0
    part_warmups = 0

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.program = self
        self.layouts = {bucket: ColumnLayout(bucket, LIMITS) for bucket in BUCKETS}
        self.arrays = StepArrays(LIMITS)
        self.ops: dict[type[Op], Mapping[int, float]] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.runs = 0
        self.closed = False

    def bucket(self, step: Step) -> Bucket:
        decodes = sum(row.is_decode for row in step.rows)
        block = LIMITS.prefill_block
        blocks = sum(-(-row.count // block) for row in step.rows if not row.is_decode)
        return choose(BUCKETS, decodes, blocks, block)

    def forward(self, bucket: Bucket, vector: np.ndarray, hidden: np.ndarray | None = None) -> Any:
        assert not self.closed
        assert self.gate.wait(60)
        self.runs += 1
        step = self.layouts[bucket].views(vector)
        if hidden is None:
            return np.stack([step["tokens"], step["positions"]], axis=1).astype(np.float32)
        hidden = hidden + np.array([1, 0], np.float32)
        return hidden[step["row_index"]] if self.stage.is_last else hidden

    def chosen(self, computed: np.ndarray) -> Outputs:
        return _chosen(computed)

    def warm_write(self) -> None:
        pass

    def warm_copy(self) -> None:
        pass

    def packed_writes(self, step: Step) -> list[np.ndarray]:
        assert not any(change.sampling.edits for change in step.samplings)
        return []

    def write(self, vectors: Sequence[np.ndarray]) -> None:
        assert not vectors

    def close(self) -> None:
        self.closed = True


def fake_stages(count: int) -> list[FakeRunner]:
    return [FakeRunner(stage) for stage in stages_of(count, count)]


def _chosen(rows: np.ndarray) -> Outputs:
    tokens = rows.sum(-1).astype(np.int32) % VOCAB
    bits = np.full_like(tokens, -1.0, np.float32).view(np.int32)
    numbers: Any = np.stack([tokens, bits, np.ones_like(tokens)])
    rivals: Any = tokens[:, None] + np.arange(TOP_LOGPROBS, dtype=np.int32)
    nothing: Any = np.zeros_like(rivals, dtype=np.float32)
    return Outputs(numbers, rivals, nothing)
