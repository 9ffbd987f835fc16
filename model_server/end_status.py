"""Exit status of a model server after a drain."""

from __future__ import annotations

from collections.abc import Mapping

_TERMINATED = 143  # a shell's status for SIGTERM


def drained_status(environ: Mapping[str, str]) -> int:
    """Return 0, but 143 in a pod of a Job.

    A Job counts a host that exits with 0 as done, so after a mere eviction from a node nobody would
    restart its replica.
    """
    return _TERMINATED if environ.get("JOB_COMPLETION_INDEX", "").strip() else 0
