"""Chosen tokens on their way back from the last pipeline stage to the first.

On one host a decode row takes its token from the device. Here another host's device chose it, so
the first stage waits for the outputs of exactly those steps its decode rows depend on, and prompts
can follow each other through the stages.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from model_server.engine.sampling.sampler import TOP_LOGPROBS
from model_server.engine.step_functions import Outputs
from model_server.engine.types import Step
from model_server.multihost.link import Link, take

Tried = tuple[int, int]  # a logit row, and the draft token that it tried; -1: none
Owed = tuple["Future[Outputs]", list[Tried]]  # a step's outputs, and a slot's rows in them
Feed = Owed | int  # of a decode row: where its token will be, or the token


class StageFeedback:
    """Token feedback of one pipeline, on a host of its first stage."""

    def __init__(self, link: Link, guarded: Callable[..., Any]) -> None:
        """guarded: calls its arguments and reports any failure."""
        self._link = link
        self._guarded = guarded
        self._inbox = ThreadPoolExecutor(1, thread_name_prefix="tokens")
        self._owed: dict[int, Owed] = {}  # slot -> where its last token will be

    def feeds(self, step: Step) -> list[Feed]:
        """Return each decode row's token or its source, in row order."""
        return [
            self._owed[row.slot] if row.given < 0 else row.given
            for row in step.rows
            if row.is_decode
        ]

    def expect(
        self, step: Step, number: int, ranges: list[tuple[int, int]], rows: int
    ) -> Future[Outputs]:
        """Return the future outputs of a launched step whose arrays have `rows` logit rows."""
        outputs = self._inbox.submit(self._guarded, self._take, number, rows)
        owed: dict[int, list[Tried]] = {}
        for row, (_, end) in zip(step.rows, ranges, strict=True):
            if row.yields:
                rows_of = owed.setdefault(row.slot, [])
                rows_of.append((end - 1, row.given if rows_of else -1))
        self._owed |= {slot: (outputs, tried) for slot, tried in owed.items()}
        return outputs

    def close(self) -> None:
        """Call after the link is closed."""
        self._inbox.shutdown()

    def _take(self, number: int, rows: int) -> Outputs:
        numbers = ((3, rows), "int32")
        rivals = [((rows, TOP_LOGPROBS), "int32"), ((rows, TOP_LOGPROBS), "float32")]
        arrays: Any = take(self._link, number, [numbers], [numbers, *rivals])
        return Outputs(*arrays) if len(arrays) == 3 else Outputs(arrays[0], *_NONE)


_NONE: Any = (np.empty((0, 0), np.int32), np.empty((0, 0), np.float32))


def fill(tokens: np.ndarray, feeds: list[Feed]) -> None:
    """Wait for the tokens of the decode rows and write them. Raises LinkError."""
    for place, feed in enumerate(feeds):
        if isinstance(feed, int):
            tokens[place] = feed
        else:
            outputs, tried = feed
            tokens[place] = _newest(np.asarray(outputs.result().numbers[0]), tried)


def _newest(chosen: np.ndarray, tried: list[Tried]) -> int:
    """Return the token behind the right draft tokens. chosen: i32[R]."""
    token = int(chosen[tried[0][0]])
    for row, draft in tried[1:]:
        if draft != token:
            break
        token = int(chosen[row])
    return token
