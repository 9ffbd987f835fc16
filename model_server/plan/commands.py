"""The commands of `sax` that need what a model server needs.

`plan`, `precompile`, `convert` and `inspect` compute; `pull`, `models` and `rm` fetch.
"""

from __future__ import annotations

import typer

from model_server.checkpoints.hub.commands import models, pull, rm
from model_server.plan.checkpoint.commands import convert, inspect
from model_server.plan.command import plan
from model_server.plan.precompile.command import precompile


def register(app: typer.Typer) -> None:
    """Add the commands to the command line (entry point of `sax.commands`)."""
    for command in (plan, precompile, convert, inspect, pull, models, rm):
        app.command()(command)
