"""Compiles a closed set of programs, two at a time, and returns them in order."""

from __future__ import annotations

import contextvars
import logging
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import jax

from model_server.engine.buckets import Bucket

logger = logging.getLogger(__name__)

_COMPILERS = 2  # programs compiled at once: each takes hundreds of MB meanwhile


class Programs(Protocol):
    """Source of compiled programs."""

    def compiled(self, name: str, lower: Callable[[], jax.stages.Lowered]) -> Any:
        """Return the program of this name; `lower` traces it if it must be compiled."""
        ...

    def pass_on(self, name: str, body: bytes) -> None:
        """Send the bytes of an existing program to hosts that wait for it."""
        ...


class _CompiledHere:
    """Compiles in this process, using jax's persistent cache."""

    def compiled(self, name: str, lower: Callable[[], jax.stages.Lowered]) -> Any:
        return lower().compile()

    def pass_on(self, name: str, body: bytes) -> None:
        """Does nothing: no other host waits."""


COMPILED_HERE: Programs = _CompiledHere()


def compiled_in_turn(
    buckets: Sequence[Bucket], compile_one: Callable[[Bucket], Any]
) -> Generator[tuple[Bucket, Any], None, None]:
    """Yield each bucket and its program, in the order of the buckets.

    Compiles two at a time: tracing is Python and overlaps with compiling, which is not. Close the
    generator to skip the rest.
    """

    def timed(bucket: Bucket) -> Any:
        started = time.monotonic()
        program = compile_one(bucket)
        logger.info("bucket %s was ready after %.1f s", bucket, time.monotonic() - started)
        return program

    with ThreadPoolExecutor(_COMPILERS, thread_name_prefix="compile") as pool:
        # The caller's context marks these compiles as expected (see CompileWatch).
        tasks = [pool.submit(contextvars.copy_context().run, timed, bucket) for bucket in buckets]
        try:
            for bucket, task in zip(buckets, tasks, strict=True):
                yield bucket, task.result()
        finally:
            pool.shutdown(cancel_futures=True)
