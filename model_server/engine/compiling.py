"""Compiling a closed set of programs: two in the making at once, handed out in order."""

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

_COMPILERS = 2  # programs in the making at once: each takes up hundreds of MB while it is made


class Programs(Protocol):
    """Where compiled programs come from."""

    def compiled(self, name: str, lower: Callable[[], jax.stages.Lowered]) -> Any:
        """The program of this name; `lower` traces it, should it have to be compiled."""
        ...

    def pass_on(self, name: str, body: bytes) -> None:
        """This one was there already: give its bytes to whoever else waits for it."""
        ...


class _CompiledHere:
    """Compiled by this process, from jax's persistent cache where it has them."""

    def compiled(self, name: str, lower: Callable[[], jax.stages.Lowered]) -> Any:
        return lower().compile()

    def pass_on(self, name: str, body: bytes) -> None:
        """Nobody else waits."""


COMPILED_HERE: Programs = _CompiledHere()


def compiled_in_turn(
    buckets: Sequence[Bucket], compile_one: Callable[[Bucket], Any]
) -> Generator[tuple[Bucket, Any], None, None]:
    """Each bucket and its program, in the order of the buckets.

    Two at a time: tracing one, which is Python, beside compiling another, which is not. Close the
    generator where the rest is not wanted.
    """

    def timed(bucket: Bucket) -> Any:
        started = time.monotonic()
        program = compile_one(bucket)
        logger.info("bucket %s was ready after %.1f s", bucket, time.monotonic() - started)
        return program

    with ThreadPoolExecutor(_COMPILERS, thread_name_prefix="compile") as pool:
        # The caller's context says that compiling is what it expects.
        tasks = [pool.submit(contextvars.copy_context().run, timed, bucket) for bucket in buckets]
        try:
            for bucket, task in zip(buckets, tasks, strict=True):
                yield bucket, task.result()
        finally:
            pool.shutdown(cancel_futures=True)
