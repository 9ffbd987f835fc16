"""Runs commands that compute: a module of the model server, in its own process.

The SDK does not import jax, and may be installed without it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence

import typer

from sax.cli.terminal import say
from sax.host import missing_model_server

_WRONG = 2


def check_installed(command: str) -> None:
    """Exit `command` with a message and status 2 if the model server is not installed."""
    if told := missing_model_server(f"`sax {command}`"):
        say(f"sax: {told}")
        raise typer.Exit(_WRONG)


def compute(
    command: str,
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
) -> typer.Exit:
    """Run a module of the model server for `command`; return the Exit to raise."""
    check_installed(command)
    argv = [sys.executable, "-m", module, *arguments]
    return typer.Exit(subprocess.run(argv, env=environment).returncode)
