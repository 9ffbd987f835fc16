"""Reads the details of a step's rows from its outputs: scores, the likeliest tokens, experts."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from msgspec.structs import replace

from model_server.engine.column_layout import ColumnLayout
from model_server.engine.step_functions import Outputs
from model_server.engine.types import Row, RowResult, Step, Top


def scored(outputs: Outputs, row: Row, first: int, numbers: np.ndarray) -> RowResult:
    """Return the scores of a row's targets; first: its first logit row."""
    end = first + len(row.targets)
    logprobs = tuple(numbers[1, first:end].view(np.float32).tolist())
    if row.target_tops is None:
        return RowResult(target_logprobs=logprobs)
    tops = tuple(top_of(outputs, each, row.target_tops) for each in range(first, end))
    return RowResult(
        target_logprobs=logprobs,
        target_ranks=tuple(numbers[2, first:end].tolist()),
        target_tops=tops,
    )


def top_of(outputs: Outputs, row: int, count: int) -> Top:
    tokens = np.asarray(outputs.top_tokens)[row, :count].tolist()
    logprobs = np.asarray(outputs.top_logprobs)[row, :count].tolist()
    return tuple(zip(tokens, logprobs, strict=True))


def with_routes(
    step: Step, results: Sequence[RowResult], layout: ColumnLayout, routes: jax.Array
) -> list[RowResult]:
    """Add to the results of rows that ask for it the experts of their tokens."""
    firsts, every = first_tokens(step, layout), np.asarray(routes)
    return [
        replace(result, routes=every[first : first + row.count]) if row.routes else result
        for row, result, first in zip(step.rows, results, firsts, strict=True)
    ]


def first_tokens(step: Step, layout: ColumnLayout) -> list[int]:
    """Return the place of each row's first token in the flat batch, as `StepArrays.pack` has it."""
    size, decodes, block = layout.limits.prefill_block, 0, 0
    firsts: list[int] = []
    for row in step.rows:
        if row.is_decode:
            firsts.append(decodes)
            decodes += 1
        else:
            firsts.append(layout.bucket.decodes + block * size)
            block += -(-row.count // size)
    return firsts
