"""The `doctor` command."""

from __future__ import annotations

from sax.command import CommandResult, findings_result
from sax.finding import CHECKS


def doctor() -> CommandResult:
    """Look at this machine and give a remedy for each thing that a cell lacks here.

    Looks at jax, the processor and its kernels, memory, GPUs and TPUs, ports, disk, and the folders
    that sax keeps things in. Changes nothing and asks no cell; `sax k8s doctor` looks at a cluster.
    Exit status: 0 no problems (warnings allowed), 1 problems found.

    \b
    Examples:
      sax doctor
      sax doctor --json
    """
    from sax.cli.doctor.findings import diagnose  # the command line's start is felt at every call
    from sax.cli.doctor.machine import look

    return findings_result([*diagnose(look()), *(check() for check in CHECKS.values())])
