"""Commands that compute: their work is the model server's, in a process of its own.

The SDK does not import jax, and may be installed without it. Knows nothing of what is computed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence

import typer

from sax.cli.terminal import say
from sax.installed import missing_model_server

_WRONG = 2


def check_installed(command: str) -> None:
    """End `command` with a sentence and status 2 where nothing here can compute."""
    if told := missing_model_server(f"`sax {command}`"):
        say(f"sax: {told}")
        raise typer.Exit(_WRONG)


def compute(
    command: str,
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
) -> typer.Exit:
    """Run a module of the model server for `command`; how the command is to end."""
    check_installed(command)
    argv = [sys.executable, "-m", module, *arguments]
    return typer.Exit(subprocess.run(argv, env=environment).returncode)
