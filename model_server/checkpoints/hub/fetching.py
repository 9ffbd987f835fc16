"""Turns what a publication names into a local path, fetched from a hub if need be."""

from __future__ import annotations

from collections.abc import Callable

from model_server.checkpoints.hub.huggingface import ModelHub
from sax.references import parse_reference
from sax.types import Progress

Report = Callable[[Progress], None]


def report_to_nobody(progress: Progress) -> None:
    """For callers that show no progress."""


def pin(checkpoint: str) -> str:
    """Return the checkpoint with the commit that its revision means now; a path unchanged.

    Blocking, for some seconds at most. Raises InvalidName, CheckpointNotFound,
    CheckpointUnreachable.
    """
    reference = parse_reference(checkpoint)
    return checkpoint if reference is None else str(ModelHub().pin(reference))


def is_fetched(checkpoint: str) -> bool:
    """Return True for what is fetched before it is opened. Raises InvalidName."""
    return parse_reference(checkpoint) is not None


def local_copy(checkpoint: str, report: Report = report_to_nobody) -> str:
    """Return the path of a checkpoint on this machine, fetched if need be; a path unchanged.

    Raises InvalidName, CheckpointError.
    """
    reference = parse_reference(checkpoint)
    return checkpoint if reference is None else str(ModelHub().fetch(reference, report))
