"""Steps on their way through the device, and their results once they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from model_server.engine.step_functions import Outputs
from model_server.engine.types import Row, RowResult, Step, StepResult, Top

_NO_RESULT = RowResult()


class Launched:
    """The steps of one launch; `result` waits for the device."""

    def __init__(
        self,
        steps: Sequence[Step],
        ranges: Sequence[Sequence[tuple[int, int]]],
        tops: Sequence[int],
        outputs: Outputs | None = None,
    ) -> None:
        """ranges: of each step, the first logit row of each row and the one behind its last.

        tops: how many likeliest tokens each row returns, of every step. outputs: with a first axis
        of steps if there are several; None until the tokens are chosen.
        """
        self._steps = steps
        self._ranges = ranges
        self._tops = tops
        self._outputs = outputs

    def chosen(self, outputs: Outputs) -> None:
        """Take note of what is computed, and begin to copy what `result` will read."""
        self._outputs = outputs
        rows = (row for step in self._steps for row in step.rows)
        rivals = any(self._tops) or any(row.target_tops for row in rows)
        for array in outputs if rivals else outputs[:1]:
            array.copy_to_host_async()

    def result(self) -> list[StepResult]:
        assert self._outputs is not None, "its tokens were not chosen"
        if len(self._steps) == 1:
            return [self._of(self._steps[0], self._ranges[0], self._outputs)]
        each = enumerate(zip(self._steps, self._ranges, strict=True))
        return [self._of(*told, _of_step(self._outputs, index)) for index, told in each]

    def _of(self, step: Step, ranges: Sequence[tuple[int, int]], outputs: Outputs) -> StepResult:
        numbers = np.asarray(outputs.numbers)
        tokens = numbers[0].tolist()
        logprobs = numbers[1].view(np.float32).tolist()
        rows = []
        for row, (first, end), tops in zip(step.rows, ranges, self._tops, strict=True):
            result = _scored(outputs, row, first, numbers) if row.targets else _NO_RESULT
            if row.yields:
                top = _top(outputs, end - 1, tops) if tops else ()
                result = RowResult(
                    tokens[end - 1], logprobs[end - 1], top, result.target_logprobs,
                    result.target_ranks, result.target_tops,
                )  # fmt: skip
            rows.append(result)
        return StepResult(step.number, tuple(rows))


def _scored(outputs: Outputs, row: Row, first: int, numbers: np.ndarray) -> RowResult:
    end = first + len(row.targets)
    logprobs = tuple(numbers[1, first:end].view(np.float32).tolist())
    if row.target_tops is None:
        return RowResult(target_logprobs=logprobs)
    tops = tuple(_top(outputs, each, row.target_tops) for each in range(first, end))
    return RowResult(
        target_logprobs=logprobs,
        target_ranks=tuple(numbers[2, first:end].tolist()),
        target_tops=tops,
    )


def _top(outputs: Outputs, row: int, count: int) -> Top:
    tokens = np.asarray(outputs.top_tokens)[row, :count].tolist()
    logprobs = np.asarray(outputs.top_logprobs)[row, :count].tolist()
    return tuple(zip(tokens, logprobs, strict=True))


class _PartOfArray:
    """One entry of an array that is copied to the host as a whole, once."""

    def __init__(self, whole: jax.Array, index: int) -> None:
        self._whole = whole
        self._index = index

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(np.asarray(self._whole)[self._index], dtype)


def _of_step(outputs: Outputs, index: int) -> Outputs:
    """Return the outputs of one step of a series."""
    every: Any = [_PartOfArray(array, index) for array in outputs]
    return Outputs(*every)
