"""The commands about this machine: `doctor` looks at it, `clean` frees its disk."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Annotated

import typer

from sax.command import CommandResult, findings_result
from sax.errors import Unavailable
from sax.finding import CHECKS
from sax.format import human_bytes

if TYPE_CHECKING:
    from sax.cli.doctor.machine import KeptFolder


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
    from sax.cli.doctor.machine import (
        diagnose,  # the command line's start is felt at every call
        look,
    )

    return findings_result([*diagnose(look()), *(check() for check in CHECKS.values())])


def clean(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")
    ] = False,
) -> CommandResult:
    """Remove what sax keeps in your home folder and makes again when it is missing.

    That is the demo model and all compiled programs. No cell of yours may run meanwhile. What
    else is there stays: fetched models, which other tools share (`sax rm` removes one), lines that
    you typed in chats, and what a cell keeps in its own folder, `.sax`. `sax doctor` shows all.

    \b
    Examples:
      sax clean --dry-run
      sax clean
    """
    from sax.cli.doctor.machine import kept_folders

    found = [each for each in kept_folders(os.environ) if each.made_again and each.place.exists()]
    for folder in () if dry_run else found:
        _remove(folder)
    value = [{"what": e.what, "path": str(e.place), "bytes": e.size} for e in found]
    verb = "would remove" if dry_run else "removed"
    told = (f"{verb} {each.what}, {human_bytes(each.size, 1)}: {each.place}" for each in found)
    return CommandResult(value, "\n".join(told) if found else "nothing to remove")


def _remove(folder: KeptFolder) -> None:
    try:
        shutil.rmtree(folder.place)
    except OSError as error:
        raise Unavailable(
            f"{error.filename or folder.place} cannot be removed: {error.strerror}"
        ) from None
