"""Quantises a model on a text, one layer after the other.

Each layer reads what the layers before it, already rounded, make of the text; so it makes up for
some of what they lost (Frantar et al. 2022, arXiv:2210.17323, section 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.checkpoints.huggingface.packed_writer import PackedTensors
from model_server.models.weights.observed import Moments, Observed
from model_server.models.weights.source import RegionPiece
from model_server.models.weights.stage import Stage
from model_server.plan.quantize.packable import TensorRows
from model_server.plan.quantize.rounding import Grid, Rounded, by_importance, corrected, nearest
from model_server.plan.quantize.segments import SegmentedModel, run
from sax.types import Progress

NEAREST, IMPORTANCE, GPTQ = METHODS = ("nearest", "importance", "gptq")
_TOKENS_TOGETHER = 2048
_MOMENTS = 2**31  # bytes of second moments at once; more are had by reading the text again
_FEW_ROWS = 64  # an expert that saw fewer is rounded by what all experts of its layer saw

Report = Callable[[Progress], None]


class Rows:
    """What the layers have made of a text, on the disk."""

    def __init__(self, path: Path, inputs: int, length: int, row: int) -> None:
        self.length = length
        self._numbers = np.memmap(path, np.float32, "w+", shape=(inputs, length, row))

    def parts(self) -> Iterator[slice]:
        step = max(_TOKENS_TOGETHER // self.length, 1)
        count = len(self._numbers)
        return (slice(at, min(at + step, count)) for at in range(0, count, step))

    def part(self, which: slice) -> jax.Array:
        """f32[B * T, row]."""
        numbers = self._numbers[which]
        return jnp.asarray(numbers.reshape(-1, numbers.shape[-1]))

    def put(self, which: slice, made: jax.Array) -> None:
        self._numbers[which] = np.asarray(made).reshape(self._numbers[which].shape)

    def inputs(self, which: slice) -> int:
        return which.stop - which.start


def embedded_rows(model: SegmentedModel, tokens: np.ndarray, path: Path) -> Rows:
    """Return the input of the first layer, of tokens i32[N, T]."""
    inputs, length = tokens.shape
    rows = Rows(path, inputs, length, model.embedded(tokens[:1]).shape[1])
    for which in rows.parts():
        rows.put(which, model.embedded(tokens[which]))
    return rows


@dataclass(slots=True)
class Findings:
    """What a reader of the result should know."""

    packed: list[str] = field(default_factory=list)  # tensors
    # Matrices of experts that too little of the text reached, by the weight that holds them
    unreached: dict[str, int] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)  # weights that the text did not reach at all
    unusable: list[str] = field(default_factory=list)  # or with numbers that are not finite


@dataclass(slots=True)
class Calibration:
    """Quantises the weights of one model."""

    model: SegmentedModel
    chosen: Mapping[int, tuple[RegionPiece, ...]]  # weights to pack, see `packable`
    grid: Grid
    method: str  # one of METHODS
    tensors: PackedTensors
    findings: Findings = field(default_factory=Findings)
    _begun: dict[str, TensorRows] = field(default_factory=dict)

    def run(self, rows: Rows | None, report: Report) -> None:
        """Quantise all layers. rows: of the text, which they change; None: for NEAREST."""
        for stage in self.model.stages:
            report(Progress("quantising", stage.first, self.model.layers, "layers"))
            widened = self._segment(stage, rows)
            if rows is not None and not stage.is_last:
                self._advance(stage, rows, widened)
        report(Progress("quantising", self.model.layers, self.model.layers, "layers"))

    def _segment(self, stage: Stage, rows: Rows | None) -> dict[int, np.ndarray]:
        """Quantise the weights of a segment; returns what each became, f32[..., out, in]."""
        made: dict[int, np.ndarray] = {}
        numbered = self._numbers(stage)
        for together in _in_batches(numbered, self._columns):
            moments = Moments([n for each in together for n in numbered[each].flat])
            if rows is not None:
                self._observe(stage, rows, moments, numbered)
            for index in together:
                made[index] = self._quantize(index, moments, numbered[index])
        return made

    def _numbers(self, stage: Stage) -> dict[int, np.ndarray]:
        """Give each matrix of a segment a number; by weight, i32[...]."""
        found: dict[int, np.ndarray] = {}
        first = 0
        for index, each in self.model.declared(stage):
            if index in self.chosen:
                outer = each.shape[:-2]
                found[index] = first + np.arange(math.prod(outer), dtype=np.int32).reshape(outer)
                first += math.prod(outer)
        return found

    def _columns(self, index: int) -> int:
        return self.model.blueprint.declarations[index].shape[-1]

    def _observe(
        self, stage: Stage, rows: Rows, moments: Moments, numbered: Mapping[int, np.ndarray]
    ) -> None:
        def watched(index: int, values: Sequence[jax.Array]) -> Sequence[Any]:
            if index not in numbered:
                return values
            return [Observed(values[0], jnp.asarray(numbered[index]), moments)]

        segment = self.model.segment(stage, watched)
        with jax.disable_jit():
            for which in rows.parts():
                run(segment, rows.part(which), rows.inputs(which))

    def _advance(self, stage: Stage, rows: Rows, widened: Mapping[int, np.ndarray]) -> None:
        def rounded(index: int, values: Sequence[jax.Array]) -> Sequence[Any]:
            return [jnp.asarray(widened[index])] if index in widened else values

        segment = self.model.segment(stage, rounded)
        for which in rows.parts():
            rows.put(which, run(segment, rows.part(which), rows.inputs(which)))

    def _quantize(self, index: int, moments: Moments, numbers: np.ndarray) -> np.ndarray:
        wide = self.model.read(index)
        matrices = wide.reshape(-1, *wide.shape[-2:])
        path = self.model.blueprint.declarations[index].path
        seen = self._seen(path, moments, [int(n) for n in numbers.flat])
        rounded = [self._rounded(*each, path) for each in zip(matrices, seen, strict=True)]
        codes = np.stack([each.codes for each in rounded]).reshape(wide.shape)
        scales = np.stack([each.scales for each in rounded]).reshape(*wide.shape[:-1], -1)
        self._put(index, codes, scales)
        return np.stack([each.widened() for each in rounded]).reshape(wide.shape)

    def _seen(self, path: str, moments: Moments, numbers: list[int]) -> Iterator[np.ndarray | None]:
        """Yield the mean second moments of each matrix; None: nothing is known."""
        total = sum(moments.rows.get(n, 0) for n in numbers)
        if not total and self.method != NEAREST:
            self.findings.unseen.append(path)
        together: np.ndarray | None = None
        for number in numbers:
            rows = moments.rows.get(number, 0)
            if not total:
                yield None
            elif rows >= _FEW_ROWS or len(numbers) == 1:
                yield np.asarray(moments.sums[number]) / max(rows, 1)
            else:
                self.findings.unreached[path] = self.findings.unreached.get(path, 0) + 1
                if together is None:
                    found = [moments.sums[n] for n in numbers if n in moments.sums]
                    together = sum(map(np.asarray, found), np.zeros_like(found[0])) / total
                yield together

    def _rounded(self, matrix: np.ndarray, seen: np.ndarray | None, path: str) -> Rounded:
        if seen is not None and not np.isfinite(seen).all():
            self.findings.unusable.append(path)
            seen = None
        if seen is None or self.method == NEAREST:
            return nearest(matrix, self.grid)
        if self.method == IMPORTANCE:
            return by_importance(matrix, np.diag(seen), self.grid)
        return corrected(matrix, seen, self.grid)

    def _put(self, index: int, codes: np.ndarray, scales: np.ndarray) -> None:
        for piece in self.chosen[index]:
            if piece.name not in self._begun:
                shape = self.tensors.checkpoint.shape(piece.name)
                self._begun[piece.name] = TensorRows.empty(shape, self.tensors.form)
            tensor = self._begun[piece.name]
            tensor.put(piece, codes, scales)
            if not tensor.left:
                self.tensors.put(piece.name, tensor.codes, tensor.scales)
                self.findings.packed.append(piece.name)
                del self._begun[piece.name]


def _in_batches(
    numbered: Mapping[int, np.ndarray], columns: Callable[[int], int]
) -> Iterator[list[int]]:
    """Yield weights whose second moments fit in memory together, at least one at a time."""
    batch: list[int] = []
    held = 0
    for index, numbers in numbered.items():
        size = numbers.size * columns(index) ** 2 * 4
        if batch and held + size > _MOMENTS:
            yield batch
            batch, held = [], 0
        batch.append(index)
        held += size
    if batch:
        yield batch
