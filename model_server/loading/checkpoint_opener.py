"""Opens checkpoints: their place is checked, their files are fetched, all within a time limit.

The limit is for a file system or a bucket that never answers.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from typing import TypeVar

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.hub.fetching import is_fetched, local_copy, pin
from model_server.checkpoints.opening import open_checkpoint
from model_server.checkpoints.roots import CheckpointRoots
from model_server.engine.worker import Worker
from sax.errors import CheckpointError
from sax.names import NO_CHECKPOINT
from sax.types import ModelSpec, Progress

logger = logging.getLogger(__name__)

_MOST_HANGING = 8
Report = Callable[[Progress], None]
T = TypeVar("T")


class Openings:
    """Runs what reads configurations, headers and tokenizers. Thread-safe.

    A thread that waits for a file system cannot be stopped: it is left behind and counted.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self.hanging = 0  # threads left behind that have not ended

    def run(self, path: str, job: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
        """Return what `job` returns; `undo` gets what it returns too late.

        Raises what the job raises, and CheckpointError if it takes too long.
        """
        if self.hanging >= _MOST_HANGING:
            raise CheckpointError(
                f"{path} is not opened: {self.hanging} checkpoints that were opened earlier still "
                "do not answer; restart this model server"
            )
        opening = Worker.once(f"load opening {path}", job)
        try:
            return opening.result(self._seconds)
        except TimeoutError:
            if opening.done():  # the job's own
                raise
            self._leave(path, opening, undo)
            raise CheckpointError(
                f"{path} could not be opened within {self._seconds:g} s: its file system or bucket "
                "does not answer; --open_seconds is the limit"
            ) from None

    def _leave(self, path: str, opening: Future[T], undo: Callable[[T], None] | None) -> None:
        with self._lock:
            self.hanging += 1
        logger.warning("a thread that opens %s hangs; now %d such threads", path, self.hanging)

        def ended(late: Future[T]) -> None:
            with self._lock:
                self.hanging -= 1
            if undo is not None and late.exception() is None:
                undo(late.result())

        opening.add_done_callback(ended)


class CheckpointOpener:
    """Fetches and opens checkpoints below the roots. Thread-safe."""

    def __init__(self, roots: Sequence[str], open_seconds: float) -> None:
        self._roots = CheckpointRoots(roots)
        self._openings = Openings(open_seconds)

    def pinned(self, spec: ModelSpec) -> ModelSpec:
        """Name the commits of what a hub has, for every host and every later look at it.

        Raises InvalidName, CheckpointError.
        """
        overrides = dict(spec.overrides)
        if draft := _draft_checkpoint(overrides):
            overrides["DRAFT_MODEL"] = json.dumps(self.pin(draft))
        return replace(spec, checkpoint=self.pin(spec.checkpoint), overrides=overrides)

    def pin(self, checkpoint: str) -> str:
        """Return a checkpoint with the commit that its revision means now; a path unchanged.

        Raises InvalidName, CheckpointError for one that no load here can fetch.
        """
        if not is_fetched(checkpoint):
            return checkpoint
        self._roots.check(checkpoint)
        return pin(checkpoint)

    @contextmanager
    def opened(self, spec: ModelSpec, report: Report) -> Iterator[Checkpoint | None]:
        """Open the checkpoint of a model; None: it has none.

        A CheckpointError raised while it is open names its path.
        """
        with named(spec.checkpoint):
            if spec.checkpoint == NO_CHECKPOINT:
                where = nullcontext(None)
            else:
                where = self.opener(report)(spec.checkpoint)
            with where as checkpoint:
                yield checkpoint

    def opener(self, report: Report) -> Callable[[str], AbstractContextManager[Checkpoint]]:
        """Return what fetches a checkpoint, if need be, and opens it."""

        def open_it(path: str) -> AbstractContextManager[Checkpoint]:
            place = self.place(path, report)
            return closing(
                self._openings.run(path, lambda: open_checkpoint(place), lambda late: late.close())
            )

        return open_it

    def local(self, spec: ModelSpec, report: Report) -> ModelSpec:
        """Return the spec with a local path, for models whose own function opens the checkpoint.

        Raises CheckpointError.
        """
        if spec.checkpoint == NO_CHECKPOINT:
            return spec
        return replace(spec, checkpoint=self.place(spec.checkpoint, report))

    def place(self, path: str, report: Report) -> str:
        """Return where a checkpoint is on this machine, fetched if need be.

        Raises CheckpointError.
        """
        self._openings.run(path, lambda: self._roots.check(path))
        return local_copy(path, report)

    def read(self, path: str, job: Callable[[], T]) -> T:
        """Return what a job reads of an opened checkpoint.

        Raises CheckpointError if it takes too long.
        """
        return self._openings.run(path, job)


@contextmanager
def named(path: str) -> Iterator[None]:
    """Prefix checkpoint errors with the checkpoint's path, unless the text has it already."""
    try:
        yield
    except CheckpointError as exc:
        if path in exc.text:
            raise
        raise type(exc)(f"{path}: {exc.text}", param=exc.param) from exc


def _draft_checkpoint(overrides: Mapping[str, str]) -> str | None:
    """Return what DRAFT_MODEL says; None if it is no text, which configuring a recipe refuses."""
    try:
        wanted = json.loads(overrides.get("DRAFT_MODEL", "null"))
    except ValueError:
        return None
    return wanted if isinstance(wanted, str) else None
