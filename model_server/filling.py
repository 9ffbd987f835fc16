"""Creates the weights of a model in order, a few at a time, and reports progress in bytes."""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import jax

from model_server.models.weight import Declaration
from sax.types import Progress

AHEAD = 2  # weights in flight: one is read while another is placed

Report = Callable[[Progress], None]
Together = Callable[[Sequence[Declaration]], bool]  # may these be in flight at once?


def fill(
    declared: Sequence[Declaration],
    make: Callable[[Declaration], list[jax.Array]],
    phase: str,
    report: Report,
    together: Together,
) -> list[list[jax.Array]]:
    """Return the arrays of each weight."""
    total = sum(weight.bytes for weight in declared)
    placed: list[list[jax.Array]] = []
    done = 0
    coming: deque[Future[list[jax.Array]]] = deque()
    with ThreadPoolExecutor(AHEAD, thread_name_prefix="weights") as pool:
        try:
            for index, waited in enumerate(declared):
                for weight in _starting(declared[index:], len(coming), together):
                    context = contextvars.copy_context()  # marks compiles as expected
                    coming.append(pool.submit(context.run, make, weight))
                report(Progress(phase, done, total, "bytes"))
                placed.append(coming.popleft().result())
                done += waited.bytes
        finally:
            pool.shutdown(cancel_futures=True)
    report(Progress(phase, total, total, "bytes"))
    return placed


def _starting(
    left: Sequence[Declaration], started: int, together: Together
) -> Iterator[Declaration]:
    """Yield the weights to start now; the first `started` of `left` are in flight already."""
    for count in range(started, len(left)):
        if count and not together(left[: count + 1]):
            return
        yield left[count]
