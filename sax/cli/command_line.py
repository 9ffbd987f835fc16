"""The command line of `sax`: its help, its own options, and the module of each command.

A line is answered by an app that has its command alone: the modules of all others take two thirds
of what `sax` does before it asks a cell.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from sax.cli.failure import ADMIN_OPTION, ReportingGroup, report_bug
from sax.command import PLAIN, CommandLine
from sax.config import ADDRESS_VARIABLE, check_addresses

_HELP = """Serve JAX models from a laptop to many TPU slices.

\b
Chat with a model, from nothing:
  sax run HuggingFaceTB/SmolLM2-135M-Instruct

\b
Start a cell on this machine:
  sax up                                                   # in one terminal
  sax publish /sax/test/smollm2 llama MODEL.gguf --wait    # in another
  sax generate /sax/test/smollm2 "The sky is"

Every command has --help with examples.
"""

_SETTINGS: dict[str, Any] = {**PLAIN, "add_completion": True}

# Command -> the module below sax.cli that has its function; in the order of the help.
COMMANDS: Mapping[str, str] = {
    "up": "local.up",
    "demo": "local.demo",
    "launch": "commands.launch",
    "publish": "commands.publishing",
    "update": "commands.publishing",
    "update-weights": "commands.weights",
    "weights": "commands.weights",
    "pause": "commands.weights",
    "resume": "commands.weights",
    "sleep": "commands.weights",
    "wake": "commands.weights",
    "promote": "commands.publishing",
    "abort": "commands.publishing",
    "rollback": "commands.history",
    "unpublish": "commands.publishing",
    "versions": "commands.history",
    "events": "commands.history",
    "logs": "commands.history",
    "ls": "commands.listing",
    "status": "commands.listing",
    "wait": "commands.wait",
    "watch": "commands.wait",
    "run": "local.run",
    "generate": "commands.requests",
    "chat": "commands.chat",
    "embed": "commands.requests",
    "rerank": "commands.requests",
    "classify": "commands.requests",
    "gradient": "commands.requests",
    "speak": "commands.requests",
    "transcribe": "commands.requests",
    "custom": "commands.requests",
    "bench": "commands.bench",
    "doctor": "doctor",
    "clean": "doctor",
    "token": "commands.acls",
    "getacl": "commands.acls",
    "setacl": "commands.acls",
}
_PASSING_ON = ("up", "demo", "launch")  # more arguments go to the programs that they start
_ASKS_OTHERS = ("doctor",)  # packages beside ours add to what it finds


def command_line(*names: str) -> CommandLine:
    """Return an app with these of COMMANDS."""
    app = CommandLine(name="sax", help=_HELP, cls=ReportingGroup, no_args_is_help=True, **_SETTINGS)
    app.callback()(options)
    for name in names:
        command = getattr(import_module(f"sax.cli.{COMMANDS[name]}"), name.replace("-", "_"))
        passed_on = {"allow_extra_args": True, "ignore_unknown_options": False}
        settings = {"context_settings": passed_on} if name in _PASSING_ON else {}
        app.command(name, **settings)(command)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        from sax.cli.installation import installation

        print(installation())
        raise typer.Exit


def options(
    ctx: typer.Context,
    admin: Annotated[
        str | None,
        typer.Option(
            envvar=ADDRESS_VARIABLE,
            metavar="HOST:PORT,...",
            help="Address of the cell's admin server; separate several with commas.",
            show_default="127.0.0.1:10000",
        ),
    ] = None,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Print what is installed.",
        ),
    ] = False,
) -> None:
    ctx.obj = None if admin is None else check_addresses(admin, "--admin")


def alone(arguments: Sequence[str]) -> str | None:
    """Return the command of a line if it needs no other; None if all have to be known.

    That is so for the help of `sax` itself, its other options, completion in a shell, commands of
    other packages, and words that are no command, which may be near one.
    """
    if "_SAX_COMPLETE" in os.environ:
        return None
    words = iter(arguments)
    for word in words:
        if word == ADMIN_OPTION:
            next(words, None)
        elif not word.startswith(f"{ADMIN_OPTION}="):
            return word if word in COMMANDS and word not in _ASKS_OTHERS else None
    return None


def run(app: CommandLine) -> None:
    """Answer the line of this process and end it."""
    try:
        app(prog_name="sax")
    except Exception as error:
        sys.exit(report_bug(error))
