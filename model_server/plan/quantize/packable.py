"""Finds the matrices of a model that can be written packed, and the tensors that they are made of.

A model's weight may be several tensors of the checkpoint, and a tensor parts of several weights. It
is packed if all of its rows are rows of weights that are, each with all of its columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.huggingface.packed_writer import PackedForm
from model_server.checkpoints.packed import Packing
from model_server.checkpoints.region import whole
from model_server.models.recipe import Recipe
from model_server.models.weights.quantization import has_transposed
from model_server.models.weights.source import RegionPiece, WeightSource
from model_server.models.weights.weight import Declaration, WeightForm, blueprint
from model_server.plan.quantize.segments import layer_of


@dataclass(frozen=True, slots=True)
class _Fitting:
    """Marks the matrices that the form fits, as a `Quantization`."""

    form: PackedForm

    def packing_of(
        self, source: WeightSource, shape: tuple[int, ...], *, table: bool
    ) -> Packing | None:
        columns = shape[-1]
        together = 32 // self.form.bits
        if table or has_transposed(source) or columns % (self.form.group or together):
            return None
        return Packing(f"int{self.form.bits}", self.form.group, offset=False)

    def check(self, packings: Iterable[Packing]) -> None:
        """Nothing is required of a model here."""


def packable(
    recipe: Recipe, checkpoint: Checkpoint, form: PackedForm
) -> dict[int, tuple[RegionPiece, ...]]:
    """Return the weights of layers to pack, by their declarations' numbers, and their pieces."""
    made = blueprint(lambda: recipe.build(WeightForm(quantization=_Fitting(form))))
    marked = dict(enumerate(made.declarations))
    fitting = {
        index: tuple(each.source.pieces(checkpoint, whole(each.shape)))
        for index, each in marked.items()
        if each.packing is not None and layer_of(each.path) is not None
    }
    while wrong := set(_not_whole(marked, fitting, checkpoint)):
        fitting = {index: found for index, found in fitting.items() if index not in wrong}
    return fitting


def _not_whole(
    declared: dict[int, Declaration],
    fitting: dict[int, tuple[RegionPiece, ...]],
    checkpoint: Checkpoint,
) -> Iterator[int]:
    """Yield the weights with a tensor that would not be packed whole."""
    others = {n for i, each in declared.items() if i not in fitting for n in each.source.names}
    rows: dict[str, int] = {}
    for pieces in fitting.values():
        for piece in pieces:
            rows[piece.name] = rows.get(piece.name, 0) + len(_all_of(piece.region[0]))
    for index, pieces in fitting.items():
        columns = whole(declared[index].shape)[-1]
        for piece in pieces:
            shape = checkpoint.shape(piece.name)
            fits = len(shape) == 2 and shape[1] == columns.stop and rows[piece.name] == shape[0]
            lies = piece.place[-1] == columns and piece.region[-1] == columns
            if not (fits and lies) or piece.transposed or piece.name in others:
                yield index
                break


def _all_of(part: slice) -> range:
    return range(part.start, part.stop, part.step or 1)


@dataclass(slots=True)
class TensorRows:
    """A tensor whose rows are put together."""

    codes: np.ndarray  # i8[out, in]
    scales: np.ndarray  # f32[out, groups]
    left: int  # rows that have not come

    @classmethod
    def empty(cls, shape: tuple[int, ...], form: PackedForm) -> TensorRows:
        rows, columns = shape
        scales = np.empty((rows, columns // (form.group or columns)), np.float32)
        return cls(np.empty(shape, np.int8), scales, rows)

    def put(self, piece: RegionPiece, codes: Any, scales: Any) -> None:
        """Take the rows of one piece from a weight's, i8[..., out, in] and f32[..., out, groups].

        Its place may have experts in front.
        """
        *front, rows, _ = piece.place
        at = (*(each.start for each in front), rows)
        self.codes[piece.region[0]] = codes[at]
        self.scales[piece.region[0]] = scales[at]
        self.left -= len(_all_of(piece.region[0]))
