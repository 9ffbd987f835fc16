"""The tokens that come back from the last stage to the first, and who is fed them.

On one host a decode row takes its token from the device. Here the device that chose it is another
host's: the first stage waits for the tokens of exactly those steps that its decode rows hang on,
so that prompts run through the stages one behind the other.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from model_server.engine.sampler import TOP_LOGPROBS
from model_server.engine.step_program import Outputs
from model_server.engine.types import Step
from model_server.multihost.link import Link, take

Owed = tuple["Future[Outputs]", int]  # a step's outputs, and the row among them


class Feedback:
    """Of one pipeline, on a host of its first stage."""

    def __init__(self, link: Link, guarded: Callable[..., Any]) -> None:
        """guarded: calls what it is given, and sees to it that a failure is known."""
        self._link = link
        self._guarded = guarded
        self._inbox = ThreadPoolExecutor(1, thread_name_prefix="tokens")
        self._owed: dict[int, Owed] = {}  # slot -> where its last token will be

    def feeds(self, step: Step) -> list[Owed]:
        """Where the token of each decode row comes from, in their order."""
        return [self._owed[row.slot] for row in step.rows if row.is_decode]

    def expect(
        self, step: Step, number: int, ranges: list[tuple[int, int]], rows: int
    ) -> Future[Outputs]:
        """The outputs of a step that was sent off, in arrays of so many logit rows."""
        outputs = self._inbox.submit(self._guarded, self._take, number, rows)
        for row, (first, _) in zip(step.rows, ranges, strict=True):
            if row.is_decode or (row.yields and not row.targets):
                self._owed[row.slot] = (outputs, first)
        return outputs

    def close(self) -> None:
        """After the link is closed."""
        self._inbox.shutdown()

    def _take(self, number: int, rows: int) -> Outputs:
        numbers = ((2, rows), "int32")
        rivals = [((rows, TOP_LOGPROBS), "int32"), ((rows, TOP_LOGPROBS), "float32")]
        arrays: Any = take(self._link, number, [numbers], [numbers, *rivals])
        return Outputs(*arrays) if len(arrays) == 3 else Outputs(arrays[0], *_NONE)


_NONE: Any = (np.empty((0, 0), np.int32), np.empty((0, 0), np.float32))


def fill(tokens: np.ndarray, feeds: list[Owed]) -> None:
    """Write the tokens that decode rows are fed; waits for them. Raises LinkError."""
    for place, (outputs, row) in enumerate(feeds):
        tokens[place] = outputs.result().numbers[0, row]
